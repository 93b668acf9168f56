"""Makes sure that a matrix product gives a row the same bits whatever rows are beside it, as exact decoding needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_MOST = (64, 32, 16, 8, 4, 2, 1)
_LEAST = (1, 2, 4, 8)
_COUNTS = (*range(1, 18), 24, 31, 33, 41, 48, 50, 57, 64)
"""Between them they are computed with every number of rows that `packed_linear.padded_rows` gives up to 64."""
_PLACE = 3
"""Rows before the ones that are compared: a row's place must not matter either."""
_COMPARED = 500_000
"""Outputs that are compared, about. In bfloat16 another order of a sum over 1,536 inputs shows in one of 100,000."""
_MOST_DRAWS = 16

Product = Callable[[Tensor], Tensor]
"""[rows, in] -> [rows, out]."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """How many rows a product may take for its rows not to depend on how many there are."""

    least: int
    """Libraries have kernels for very few rows (one, above all) that sum in another order."""
    most: int


class BoundedRows:
    """A product computed in blocks of at most so many rows, the last one padded to at least so many."""

    def __init__(self, product: Product, bounds: RowRange) -> None:
        self._product = product
        self._bounds = bounds

    def __call__(self, x: Tensor) -> Tensor:
        """:param x: [..., rows, in]. :return: [..., rows, out]."""
        if x.shape[-2] <= self._bounds.most:
            return self._padded(x)
        return torch.cat([self._padded(part) for part in x.split(self._bounds.most, dim=-2)], dim=-2)

    def _padded(self, x: Tensor) -> Tensor:
        rows = x.shape[-2]
        if rows >= self._bounds.least:
            return self._product(x)
        return self._product(F.pad(x, (0, 0, 0, self._bounds.least - rows)))[..., :rows, :]


def row_range(product: Product, inputs: int, dtype: torch.dtype, device: torch.device) -> RowRange:
    """The widest range, upwards first, in which a row was seen not to depend on the number of rows or on its place."""
    draws = list(_draws(product, inputs, dtype, device))
    for most in _MOST:
        for least in (each for each in _LEAST if each <= most):
            if all(_is_stable(product, x, RowRange(least, most)) for x in draws):
                return RowRange(least, most)
    return RowRange(1, 1)


def _draws(product: Product, inputs: int, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    """Inputs [most + place, in] with a few large entries, as a model's states have them."""
    generator = torch.Generator().manual_seed(0)
    rows = _MOST[0] + _PLACE
    outputs = product(torch.zeros((1, inputs), dtype=dtype, device=device)).shape[-1]
    for _ in range(min(_MOST_DRAWS, -(-_COMPARED // (rows * outputs)))):
        x = torch.randn((rows, inputs), generator=generator)
        large = torch.rand((rows, inputs), generator=generator) > 0.98
        yield (x * (1 + 4 * large)).to(device, dtype)


def _is_stable(product: Product, x: Tensor, bounds: RowRange) -> bool:
    bounded = BoundedRows(product, bounds)
    whole, moved = bounded(x[: bounds.most]), bounded(x[_PLACE : _PLACE + bounds.most])  # [most, out]
    if not torch.equal(whole[_PLACE:], moved[: max(0, bounds.most - _PLACE)]):
        return False
    counts = [count for count in _COUNTS if count < bounds.most]
    return all(torch.equal(bounded(x[_PLACE : _PLACE + n]), moved[:n]) for n in counts)
