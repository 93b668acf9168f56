"""KV memory: one buffer for all sequences, cut into ranges of token slots; they are the budget that admission counts.

A sequence holds one range of slots from admission to its end. Its keys and values are a view of the buffer, so
nothing is copied when sequences join or leave, and no more memory is ever taken than the budget says.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from respsd.errors import Overloaded


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of one token's keys and values in a model."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def empty(self, slots: int) -> Tensor:
        """A buffer of token slots, [layers, 2, kv_heads, slots, head_dim], not zeroed: a slot is written, then read.

        On the processor the system gives the memory page by page as slots are written for the first time.
        """
        shape = (self.layers, 2, self.kv_heads, slots, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)


class SequenceCache:
    """Keys and values of one sequence.

    Rows `[0, length)` are the committed prefix in order. A forward writes its rows behind them, where they stay
    scratch until `commit` keeps some; whatever is not kept is overwritten by the next forward.
    """

    __slots__ = ("data", "first_slot", "length")

    def __init__(self, layout: KvLayout, capacity: int, data: Tensor | None = None, first_slot: int = 0) -> None:
        """:param data: [layers, 2, kv_heads, capacity, head_dim], where the rows live; None: memory of its own.
        :param first_slot: where they begin in an arena.
        """
        self.length = 0
        self.first_slot = first_slot
        self.data = layout.empty(capacity) if data is None else data

    def write(
        self, layer: int, start: int, keys: Tensor, values: Tensor, taken: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Put rows at `start` and return all rows up to their end, or so many, with what stands behind them.

        :param keys: [kv_heads, rows, head_dim]; `values` likewise.
        :param taken: rows that are wanted, at least those up to the end; None: those. See `clear`.
        :return: keys and values, each [kv_heads, taken, head_dim], views of the buffer as far as it goes.
        """
        end = start + keys.shape[1]
        cached_keys, cached_values = self.data[layer].unbind()
        cached_keys[:, start:end] = keys
        cached_values[:, start:end] = values
        if taken is None or taken == end:
            return cached_keys[:, :end], cached_values[:, :end]
        if taken > self.data.shape[3]:
            missing = (0, 0, 0, taken - end)
            return F.pad(cached_keys[:, :end], missing), F.pad(cached_values[:, :end], missing)
        return cached_keys[:, :taken], cached_values[:, :taken]

    def clear(self, end: int, taken: int) -> None:
        """Make rows `[end, taken)` zeros in all layers, for a forward that takes them and hides them.

        Whatever an earlier forward left there may not even be a number, and hidden NaN times zero is NaN.
        """
        if taken > end:
            self.data[:, :, :, end:taken] = 0.0

    def copy_prefix(self, other: SequenceCache, length: int) -> None:
        """Begin with the first rows of another cache, committed there."""
        self.length = length
        self.data[:, :, :, :length] = other.data[:, :, :, :length]

    def advance(self, rows: int) -> None:
        """Keep the first scratch rows, which stand in their places already."""
        self.length += rows

    def commit(self, kept: list[int]) -> None:
        """Keep these scratch rows (offsets from `length`, ascending) behind the prefix; only misplaced ones move."""
        start = self.length
        self.length = start + len(kept)
        placed = next((place for place, row in enumerate(kept) if row != place), len(kept))
        if placed < len(kept):
            rows = torch.tensor(kept[placed:], device=self.data.device) + start
            # The gather is a copy, so source and destination may overlap.
            self.data[:, :, :, start + placed : self.length] = self.data.index_select(3, rows)


class KvPool:
    """The budget of KV tokens as ranges of slots; a range is the whole need of a sequence, so none can run dry."""

    def __init__(self, total_tokens: int) -> None:
        self.total_tokens = total_tokens
        self._free: list[tuple[int, int]] = [(0, total_tokens)] if total_tokens else []  # (start, end), rising

    @property
    def reserved_tokens(self) -> int:
        """Slots that sequences hold."""
        return self.total_tokens - sum(end - start for start, end in self._free)

    def fits(self, tokens: int) -> bool:
        """Whether a range of so many slots is free now."""
        return any(end - start >= tokens for start, end in self._free)

    def reserve(self, tokens: int) -> slice:
        """Take the first range of free slots that is large enough; raise Overloaded where there is none."""
        for place, (start, end) in enumerate(self._free):
            if end - start >= tokens:
                rest = [(start + tokens, end)] if start + tokens < end else []
                self._free[place : place + 1] = rest
                return slice(start, start + tokens)
        raise Overloaded("the KV cache", self.reserved_tokens + tokens, self.total_tokens)

    def release(self, slots: slice) -> None:
        """Give a reserved range back; it joins the free ranges at either side."""
        insort(self._free, (slots.start, slots.stop))
        joined: list[tuple[int, int]] = []
        for start, end in self._free:
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        self._free = joined


class KvArena:
    """One model's buffer over all slots of a pool, and two more."""

    def __init__(self, layout: KvLayout, slots: int) -> None:
        self._layout = layout
        self.unread_slot = slots
        """For rows that are written only because shapes are fixed: nobody reads it."""
        self.zero_slot = slots + 1
        """For reads of rows that there are not: nobody writes it."""
        self.data = layout.empty(slots + 2)  # [layers, 2, kv_heads, slots + 2, head_dim]
        self.data[:, :, :, slots:] = 0.0

    def cache(self, slots: slice) -> SequenceCache:
        """An empty cache on a reserved range."""
        return SequenceCache(self._layout, slots.stop - slots.start, self.data[:, :, :, slots], slots.start)
