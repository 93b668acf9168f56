"""A linear layer whose weight is packed once for the processor's matrix kernels.

oneDNN lays a bfloat16 weight out anew inside every product; for the few rows of a draft level that costs as much as the
product itself. Packed once, the same kernels give the same bits in two thirds of the time (measured, 1 to 60 rows).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 16
"""Rows that the layout is chosen for; products with other numbers of rows are as right, and nearly as fast."""


class PackedLinear:
    """`x @ weight.T + bias`; packs on the processor in bfloat16, elsewhere it is `F.linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """:param weight: [out, in]; `bias` [out]."""
        self._bias = bias
        self._packed = _can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """:param x: [rows, in]. :return: [rows, out]."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def _can_pack(weight: Tensor) -> bool:
    """Whether this build of torch has oneDNN's packed product for the weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
