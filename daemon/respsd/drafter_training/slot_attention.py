"""Attention for generating many answers at once: each row of the batch is a slot with its own keys and values.

Unlike the engine's attention (`respsd.engine.attention`, one sequence at a time against its own cache) all slots are
computed in one call, which is what makes a large batch fast. Registered with transformers' AttentionInterface, so the
model runs unmodified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from respsd.engine.kv_cache import KvLayout
from respsd.errors import EngineFault

NAME = "respsd-slots"


_ROOM_STEP = 64
"""Tokens by which the slots' room grows and shrinks."""


class SlotCache:
    """Keys and values of all slots, [layer][slots, kv_heads, room, head_dim].

    The room is what the longest sequence needs now, not what one may ever need: products over whole, contiguous
    tensors are several times faster on a processor than over a slice of them.
    """

    def __init__(self, layout: KvLayout, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self.room = 0
        self._layout = layout
        # Each layer's memory is taken once: rooms of many sizes, one after another, leave a heap of holes behind.
        numbers = slots * layout.kv_heads * self._rounded(capacity) * layout.head_dim
        self._memory = [
            [torch.empty(numbers, dtype=layout.dtype, device=layout.device) for _ in range(layout.layers)]
            for _ in range(2)
        ]
        self.keys, self.values = ([self._view(each, 0) for each in memory] for memory in self._memory)
        self.fit(1)

    def fit(self, longest: int) -> None:
        """Have room for sequences of `longest` tokens, at most two steps more; raises EngineFault over capacity."""
        if longest > self.capacity:
            raise EngineFault(f"a sequence of {longest} tokens does not fit slots of {self.capacity}")
        wanted = self._rounded(longest)
        if self.room < wanted or self.room > wanted + _ROOM_STEP:
            kept = min(self.room, wanted)
            for memory, views in zip(self._memory, (self.keys, self.values), strict=True):
                for layer, numbers in enumerate(memory):
                    views[layer] = self._resized(numbers, views[layer], wanted, kept)
            self.room = wanted

    def _resized(self, memory: Tensor, old: Tensor, room: int, kept: int) -> Tensor:
        """The layer's memory as `room` rows a slot, the first `kept` of which are the old ones."""
        rows = old[:, :, :kept].clone()  # the two views overlap
        new = self._view(memory, room)
        new[:, :, :kept] = rows
        # Rows beyond a slot's length are masked, but NaN from memory that was never written would get through a mask.
        new[:, :, kept:] = 0
        return new

    def _view(self, memory: Tensor, room: int) -> Tensor:
        layout = self._layout
        shape = (self.slots, layout.kv_heads, room, layout.head_dim)
        return memory[: math.prod(shape)].view(shape)

    @staticmethod
    def _rounded(tokens: int) -> int:
        return -(-tokens // _ROOM_STEP) * _ROOM_STEP


@dataclass(frozen=True, slots=True)
class Prefill:
    """A forward over new prompts, right-padded: rows go to these slots from position 0."""

    cache: SlotCache
    slots: Tensor  # int64 [batch]


@dataclass(frozen=True, slots=True)
class Decode:
    """A forward over one token for each of the first `positions.shape[0]` slots."""

    cache: SlotCache
    positions: Tensor  # int64 [batch]: where each slot's token goes
    mask: Tensor  # additive float32 [batch, 1, room]


def slot_attention(
    module: nn.Module,
    query: Tensor,  # [batch, heads, rows, head_dim]
    key: Tensor,  # [batch, kv_heads, rows, head_dim]
    value: Tensor,  # [batch, kv_heads, rows, head_dim]
    _attention_mask: Tensor | None,
    scaling: float | None = None,
    slot_batch: Prefill | Decode | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature; returns [batch, rows, heads, head_dim] and no weights."""
    if slot_batch is None or softcap is not None or s_aux is not None:
        raise EngineFault("this architecture's attention (soft caps or sinks) is not supported")
    layer = module.layer_idx
    assert isinstance(layer, int)
    keys, values = slot_batch.cache.keys[layer], slot_batch.cache.values[layer]
    if isinstance(slot_batch, Prefill):
        rows = key.shape[2]
        keys[slot_batch.slots, :, :rows] = key
        values[slot_batch.slots, :, :rows] = value
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2), None
    slots = torch.arange(query.shape[0], device=query.device)
    keys[slots, :, slot_batch.positions] = key[:, :, 0]
    values[slots, :, slot_batch.positions] = value[:, :, 0]
    return _decode_attention(query, keys, values, slot_batch.mask, scaling), None


def _decode_attention(
    query: Tensor,  # [batch, heads, 1, head_dim]
    keys: Tensor,  # [slots, kv_heads, room, head_dim]
    values: Tensor,
    mask: Tensor,  # additive float32 [batch, 1, room]
    scaling: float | None,
) -> Tensor:
    """One token a slot; returns [batch, 1, heads, head_dim].

    Two plain products with the query heads of one KV head folded into rows: torch's fused attention takes about
    three times as long for so few queries (measured in bfloat16, 110 to 300 tokens).
    """
    batch, heads, _rows, head_dim = query.shape
    kv_heads, room = keys.shape[1:3]
    folded = query.reshape(batch * kv_heads, heads // kv_heads, head_dim)
    scores = torch.bmm(folded, keys[:batch].view(batch * kv_heads, room, head_dim).transpose(1, 2))
    scale = head_dim**-0.5 if scaling is None else scaling
    weights = torch.softmax(scores.view(batch, heads, room).float().mul_(scale).add_(mask), dim=-1).to(values.dtype)
    out = torch.bmm(
        weights.view(batch * kv_heads, heads // kv_heads, room), values[:batch].view(batch * kv_heads, room, head_dim)
    )
    return out.view(batch, 1, heads, head_dim)


def register() -> None:
    """Make the attention known to transformers; harmless when repeated."""
    AttentionInterface.register(NAME, slot_attention)
