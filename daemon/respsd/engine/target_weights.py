"""Lays out the target's linear layers for the processor's kernels, in place of the layouts that they were loaded in.

The model's code stays as it is: each `nn.Linear` computes the same product through `PackedLinear`. The weight that was
loaded is let go where the packed one replaces it, so memory grows only by second layouts of wide float32 layers,
within a bound, and by one layout of an output layer whose weight is the embedding too.

Compiling the forward (`torch.compile`) does not pay in its place, so there is no setting for it. The demo model in
bfloat16, torch 2.13, two cores: compiled for one fixed shape, a minute each, one row takes 28 in place of 42 ms; packed
layouts take 33 in place of 53 ms (both two thirds) at every shape and at once. A step's shapes vary, and compiled for
sizes that vary the first two shapes took 6 and 4 minutes on a machine that did other work, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from respsd.engine.exactness import BoundedRows, RowRange, row_range
from respsd.engine.joint_linear import join_projections
from respsd.engine.packed_linear import PackedLinear, extra_bytes

_SPARE_SHARE = 1 / 16
"""Of the machine's memory, for second layouts."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What became of a model's linear layers."""

    layers: int
    """Layers that compute through another layout than they were loaded in."""
    bytes: int
    """Their weights, in one layout."""
    extra_bytes: int
    """Memory on top of the weights as loaded."""
    row_block: int | None
    """With `exact`: most rows that one product of every layer may take."""


def pack_linears(model: nn.Module, *, exact: bool, spare_bytes: int | None = None) -> Packing:
    """Pack every plain linear layer of a model.

    :param exact: the rows of a product must not depend on how many there are, which is tried out for each shape
    :param spare_bytes: bound of second layouts; None: a share of the machine's memory
    """
    spare = _spare_bytes() if spare_bytes is None else spare_bytes
    shared = {module.weight.data_ptr() for module in model.modules() if isinstance(module, nn.Embedding)}
    joined = [] if exact or not _is_float32_on_cpu(model) else join_projections(model)
    linears = [module for module in model.modules() if type(module) is nn.Linear and module not in joined]
    ranges: dict[torch.Size, RowRange] = {}
    packed, extra = len(joined), 0
    total = sum(linear.in_features * linear.out_features * linear.weight.itemsize for linear in (*joined, *linears))
    # The widest first: they gain most.
    for linear in sorted(linears, key=lambda each: each.out_features / each.in_features, reverse=True):
        weight = linear.weight.detach()
        second = 0 if exact else extra_bytes(weight)
        layout = PackedLinear(weight, linear.bias, exact=exact, spare=second <= spare)
        if exact:
            if weight.shape not in ranges:
                ranges[weight.shape] = row_range(layout, linear.in_features, weight.dtype, weight.device)
            linear.forward = BoundedRows(layout, ranges[weight.shape])  # type: ignore[method-assign, assignment]
        if layout.keeps_weight:
            continue
        packed += 1
        if not exact:
            linear.forward = layout  # type: ignore[method-assign, assignment]
        if second <= spare:
            spare -= second
            extra += second
        if weight.data_ptr() in shared:
            extra += weight.nbytes
        else:
            linear.weight = nn.Parameter(torch.empty_like(weight[:0]), requires_grad=False)
    return Packing(packed, total, extra, min((each.most for each in ranges.values()), default=None))


def _is_float32_on_cpu(model: nn.Module) -> bool:
    parameter = next(model.parameters())
    return parameter.dtype == torch.float32 and parameter.device.type == "cpu"


def _spare_bytes() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SPARE_SHARE)
