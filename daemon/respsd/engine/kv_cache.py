"""KV memory: one buffer a sequence, reserved whole at admission, and the budget that admission counts against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.errors import InvalidRequest, Overloaded


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


class SequenceCache:
    """Keys and values of one sequence.

    Rows `[0, length)` are the committed prefix in order. A forward writes its rows behind them, where they stay
    scratch until `commit` keeps some; whatever is not kept is overwritten by the next forward.
    """

    __slots__ = ("data", "length")

    def __init__(self, layout: KvLayout, capacity: int) -> None:
        self.length = 0
        # Not zeroed: a row is read only after it was written.
        self.data = torch.empty(
            (layout.layers, 2, layout.kv_heads, capacity, layout.head_dim),
            dtype=layout.dtype,
            device=layout.device,
        )

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows at `start` and return all rows up to their end.

        :param keys: [kv_heads, rows, head_dim]; `values` likewise.
        :return: keys and values, each [kv_heads, start + rows, head_dim], views of the buffer.
        """
        end = start + keys.shape[1]
        cached_keys, cached_values = self.data[layer, 0], self.data[layer, 1]
        cached_keys[:, start:end] = keys
        cached_values[:, start:end] = values
        return cached_keys[:, :end], cached_values[:, :end]

    def commit(self, kept: list[int]) -> None:
        """Move the kept scratch rows (offsets from `length`, ascending) behind the prefix and count them in."""
        start = self.length
        self.length = start + len(kept)
        if kept != list(range(len(kept))):
            rows = torch.tensor(kept, device=self.data.device) + start
            # The gather is a copy, so source and destination may overlap.
            self.data[:, :, :, start : self.length] = self.data[:, :, :, rows]


class KvPool:
    """The budget of KV tokens; a reservation is the whole need of a sequence, so no running one can run dry."""

    def __init__(self, total_tokens: int) -> None:
        self.total_tokens = total_tokens
        self.reserved_tokens = 0

    def check_possible(self, tokens: int) -> None:
        """Raise InvalidRequest where the need exceeds the whole budget, so waiting would never end."""
        if tokens > self.total_tokens:
            raise InvalidRequest(
                "max_new_tokens",
                tokens,
                f"prompt, output and draft tree need at most {self.total_tokens} KV tokens on this machine",
            )

    def fits(self, tokens: int) -> bool:
        """Whether the tokens can be reserved now."""
        return self.reserved_tokens + tokens <= self.total_tokens

    def reserve(self, tokens: int) -> None:
        """Take tokens from the budget; raise Overloaded where too few are left."""
        if not self.fits(tokens):
            raise Overloaded("the KV cache", self.reserved_tokens + tokens, self.total_tokens)
        self.reserved_tokens += tokens

    def release(self, tokens: int) -> None:
        """Give reserved tokens back."""
        self.reserved_tokens -= tokens
