"""Attention for generating many answers at once: each row of the batch is a slot with its own keys and values.

Unlike the engine's attention (`respsd.engine.attention`, one sequence at a time against its own cache) all slots are
computed in one call, which is what makes a large batch fast. Registered with transformers' AttentionInterface, so the
model runs unmodified.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from respsd.engine.kv_cache import KvLayout
from respsd.errors import EngineFault

NAME = "respsd-slots"


class SlotCache:
    """Keys and values of all slots, [layer][slots, kv_heads, capacity, head_dim]."""

    def __init__(self, layout: KvLayout, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        shape = (slots, layout.kv_heads, capacity, layout.head_dim)
        # Zeroed: rows beyond a slot's length are masked, but NaN from fresh memory would get through a mask.
        self.keys = [torch.zeros(shape, dtype=layout.dtype, device=layout.device) for _ in range(layout.layers)]
        self.values = [torch.zeros(shape, dtype=layout.dtype, device=layout.device) for _ in range(layout.layers)]


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
    mask: Tensor  # additive [batch, 1, 1, seen]


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
    batch, heads, _rows, head_dim = query.shape
    kv_heads = keys.shape[1]
    slots, seen = torch.arange(batch, device=query.device), slot_batch.mask.shape[-1]
    keys[slots, :, slot_batch.positions] = key[:, :, 0]
    values[slots, :, slot_batch.positions] = value[:, :, 0]
    # The query heads of one KV head folded into rows: no repeated keys.
    folded = query.view(batch, kv_heads, heads // kv_heads, head_dim)
    mask = slot_batch.mask.expand(batch, 1, heads // kv_heads, seen)
    out = F.scaled_dot_product_attention(
        folded, keys[:batch, :, :seen], values[:batch, :, :seen], attn_mask=mask, scale=scaling
    )
    return out.reshape(batch, 1, heads, head_dim), None


def register() -> None:
    """Make the attention known to transformers; harmless when repeated."""
    AttentionInterface.register(NAME, slot_attention)
