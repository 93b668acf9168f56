"""Makes sure that a matrix product gives a row the same bits whatever rows are beside it, as exact decoding needs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_BLOCKS = (64, 32, 16, 8, 4, 2, 1)
_COUNTS = (1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 31, 32, 33, 48, 60, 64)
_PLACE = 3
"""Rows before the ones that are compared: a row's place must not matter either."""

Product = Callable[[Tensor], Tensor]
"""[rows, in] -> [rows, out]."""


def row_block(product: Product, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
    """Most rows in one product for which its rows were seen not to depend on how many there are.

    A product of so many rows is compared with those of fewer, cut from it at another place.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((_BLOCKS[0] + _PLACE, inputs), generator=generator).to(device, dtype)
    alone = torch.cat([product(row) for row in x.split(1)])
    for block in _BLOCKS:
        counts = [count for count in _COUNTS if count <= block]
        if all(torch.equal(product(x[_PLACE : _PLACE + n]), alone[_PLACE : _PLACE + n]) for n in counts):
            return block
    return 1


class RowBlocks:
    """A product computed in blocks of at most so many rows."""

    def __init__(self, product: Product, block: int) -> None:
        self._product = product
        self._block = block

    def __call__(self, x: Tensor) -> Tensor:
        """:param x: [..., rows, in]. :return: [..., rows, out]."""
        if x.shape[-2] <= self._block:
            return self._product(x)
        return torch.cat([self._product(part) for part in x.split(self._block, dim=-2)], dim=-2)
