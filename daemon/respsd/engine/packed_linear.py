"""A linear layer whose weight is laid out once for the processor's matrix kernels.

`F.linear` hands a [out, in] weight to the matrix library as it is. Two other layouts are faster where it matters:

- oneDNN's own blocked layout. In bfloat16 the library would make it anew inside every product; made once, the same
  kernels give the same bits in two thirds of the time (1 to 60 rows). In float32 its kernels are ahead of MKL's from 3
  rows on where the output is wide: a vocabulary of 49,152 takes 26 in place of 50 ms at 8 rows, 32 of 72 at 16.
- The transpose, [in, out]. In float32 MKL reads it at twice the speed for one row (8 in place of 15 ms).

All measured on two cores, Zen 3 in float32 and Zen 5 in bfloat16. A row's sum in oneDNN's kernels does not depend on
how many rows there are, which `exact` builds on; MKL's does.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 16
"""Rows that oneDNN's layout is chosen for; products with other numbers of rows are as right, and nearly as fast."""

_MOST_ROWS = 1024
"""Rows of one product in oneDNN's layout; more are computed in several."""

PRODUCT_ROWS = (*range(17), *range(24, 65, 8), *range(96, 257, 32), *range(384, _MOST_ROWS + 1, 128))
"""Numbers of rows that products in oneDNN's layout have; others are padded to the next.

oneDNN makes a kernel for every number of rows of every shape of weight, and keeps up to a thousand of them. Each takes
0.6 MB and a millisecond to make (measured on a Xeon with AMX), so a daemon that makes one whenever a step has a new
number of rows grows for hours. These it makes at the start, see `make_kernels`: 20 MB for each shape.
"""

_UNPADDED = frozenset(PRODUCT_ROWS)

_WIDE = 2
"""Outputs per input from which other layouts beat MKL's in float32; narrower layers take the same time in all."""

_TRANSPOSED_ROWS = 2
"""Rows up to which the transposed weight is the fastest in float32."""


class PackedLinear:
    """`x @ weight.T + bias`, with the weight in the layouts that are fast for its shape and dtype on its device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, exact: bool = False, spare: bool = True) -> None:
        """Lay the weight out.

        :param weight: [out, in]; `bias` [out].
        :param exact: one kernel for all numbers of rows.
        :param spare: memory may be spent on a second layout of a wide float32 weight.
        """
        self._bias = bias
        self._few: Tensor | None = None  # [in, out], for few rows
        self._many: Tensor | None = None  # oneDNN's layout
        self._plain: Tensor | None = None  # [out, in]
        if _packs(weight) and (exact or weight.dtype == torch.bfloat16 or _is_wide(weight)):
            self._many = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
            if spare and not exact and weight.dtype == torch.float32:
                self._few = weight.t().contiguous()
        else:
            self._plain = weight

    def __call__(self, x: Tensor) -> Tensor:
        """:param x: [..., rows, in]. :return: [..., rows, out]."""
        if self._plain is not None:
            return F.linear(x, self._plain, self._bias)
        if self._few is not None and x.shape[-2] <= _TRANSPOSED_ROWS:
            return F.linear(x, self._few.t(), self._bias)
        rows = x.shape[:-1].numel()
        if rows in _UNPADDED:
            return self._product(x)
        flat = x.reshape(rows, x.shape[-1])
        parts = [self._padded(part) for part in flat.split(_MOST_ROWS)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(*x.shape[:-1], -1)

    def make_kernels(self) -> None:
        """Have every kernel made that a product of this layer can need."""
        if self._many is not None:
            inputs = torch.zeros((_MOST_ROWS, self._many.shape[1]), dtype=self._many.dtype)
            for rows in PRODUCT_ROWS:
                self._product(inputs[:rows])

    def _padded(self, x: Tensor) -> Tensor:
        """A product of at most `_MOST_ROWS` rows, [rows, in]."""
        rows = x.shape[0]
        padded = padded_rows(rows)
        return self._product(x if padded == rows else F.pad(x, (0, 0, 0, padded - rows)))[:rows]

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._many, self._bias, "none", [], "")
        return out

    @property
    def kernels(self) -> tuple[object, ...]:
        """What oneDNN's kernels for it are made for: layers with the same share them."""
        return () if self._many is None else (self._many.shape, self._many.dtype, self._bias is None)

    @property
    def keeps_weight(self) -> bool:
        """Whether the weight itself is still in use."""
        return self._plain is not None


def padded_rows(rows: int) -> int:
    """The number of rows that a product of so many is computed with; of each of several, where that is less."""
    return next((size for size in PRODUCT_ROWS if size >= rows), _MOST_ROWS)


def make_kernels(layers: Iterable[PackedLinear]) -> None:
    """Have the kernels made that products of these layers can need, which their first use would do, at any time."""
    for layer in {layer.kernels: layer for layer in layers}.values():
        layer.make_kernels()


def extra_bytes(weight: Tensor) -> int:
    """What a second layout of the weight takes."""
    return weight.nbytes if _packs(weight) and weight.dtype == torch.float32 and _is_wide(weight) else 0


def _is_wide(weight: Tensor) -> bool:
    return weight.shape[0] >= _WIDE * weight.shape[1]


def _packs(weight: Tensor) -> bool:
    """Whether this build of torch has oneDNN's packed product for the weight, at full speed on this processor."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype == torch.float32:
        return True
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
