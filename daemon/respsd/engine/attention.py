"""The project's attention for unmodified transformers models: packed rows, each sequence against its own KV and mask.

It is registered with transformers' AttentionInterface under `NAME`; every architecture that goes through that
interface runs with it. One forward carries the new rows of many sequences side by side in a batch of one; `Segment`
says which rows are whose. The segments of the forward in progress are handed over by `Target.forward` as a keyword
argument of the model's call, which transformers passes through to this function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from respsd.engine.kv_cache import SequenceCache
from respsd.errors import EngineFault

NAME = "respsd"

_FOLD_LIMIT = 128
"""Rows up to which the query heads of one KV head are folded into one long query. Measured (bf16, one row): 4 times
faster than `enable_gqa`; for prefill chunks both take the same time and folding would repeat a large mask."""

_PRODUCTS_FROM = 4096
"""Pairs of a row and a key; see `_products_are_faster`."""

_KEYS = 64
"""Where attention may be two plain products, it takes keys in multiples of so many, the last ones hidden: oneDNN makes
and keeps a kernel for each product and number of keys, and a sequence has another number in every step. Each takes
0.6 MB and more than a millisecond (measured on a Xeon): a conversation of a thousand steps took 0.6 GB.
"""


class PackedSegment(Protocol):
    """One sequence's rows in a packed forward, and how they attend."""

    @property
    def rows(self) -> slice:
        """Its rows in the packed batch."""
        ...

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Put the rows into the cache and attend.

        :param query: [heads, rows, head_dim]; `keys` and `values` [kv_heads, rows, head_dim].
        :return: [rows, heads, head_dim].
        """
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that attend to the whole cache up to themselves, as far as a mask lets them."""

    cache: SequenceCache
    rows: slice
    start: int
    """Row of the cache that the first one goes to."""
    mask: Tensor | None
    """Additive, [rows, keys], as `segment_mask` makes it; None: each row sees all."""

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See `PackedSegment`."""
        taken = None if self.mask is None else self.mask.shape[-1]
        seen_keys, seen_values = self.cache.write(layer, self.start, keys, values, taken)
        return attend(query, seen_keys, seen_values, self.mask, scale)


def attend_packed(
    segments: Sequence[PackedSegment], layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float
) -> Tensor:
    """Attention of all segments of a packed forward.

    :param query: [heads, rows, head_dim]; `keys` and `values` [kv_heads, rows, head_dim], of all segments.
    :return: [rows, heads, head_dim].
    """
    if len(segments) == 1:
        return segments[0].attend(layer, query, keys, values, scale)
    parts = []
    for segment in segments:
        rows = segment.rows
        parts.append(segment.attend(layer, query[:, rows], keys[:, rows], values[:, rows], scale))
    return torch.cat(parts)


def plain_segment(cache: SequenceCache, rows: slice, visible: Tensor | None, group: int) -> Segment:
    """Rows that go behind the cache's prefix.

    :param visible: as of `segment_mask`; None: there is one row.
    """
    dtype, device = cache.data.dtype, cache.data.device
    if visible is None and keys_taken(cache.length + 1, dtype, device) == cache.length + 1:
        return Segment(cache, rows, cache.length, None)
    if visible is None:
        visible = torch.ones((1, 1), dtype=torch.bool, device=device)
    return masked_segment(cache, rows, 0, visible, group)


def masked_segment(cache: SequenceCache, rows: slice, offset: int, visible: Tensor, group: int) -> Segment:
    """Rows that go so far behind the cache's prefix, behind others that are scratch.

    :param visible: bool [rows, offset + rows], as of `segment_mask`.
    """
    mask = segment_mask(visible, cache.length, group, cache.data.dtype)
    cache.clear(cache.length + visible.shape[1], mask.shape[-1])
    return Segment(cache, rows, cache.length + offset, mask)


def segment_mask(visible: Tensor, prefix: int, group: int, dtype: torch.dtype) -> Tensor:
    """The additive mask of a segment whose rows see the whole prefix and, of the rows behind it, `visible`.

    :param visible: bool [rows, behind]: may row i see row j behind the prefix.
    :param group: query heads per KV head, which the folded form repeats the rows for.
    :return: [rows * group or rows, keys], 0 or -inf; keys as of `keys_taken`.
    """
    rows, behind = visible.shape
    copies = group if rows <= _FOLD_LIMIT else 1
    end = prefix + behind
    taken = keys_taken(end, dtype, visible.device)
    mask = torch.zeros((copies, rows, taken), dtype=dtype, device=visible.device)
    mask[:, :, prefix:end].masked_fill_(~visible, float("-inf"))
    mask[:, :, end:] = float("-inf")
    return mask.view(-1, taken)


def keys_taken(seen: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many keys an attention over so many is computed with; see `_KEYS`."""
    return -(-seen // _KEYS) * _KEYS if _may_take_products(dtype, device) else seen


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention of one segment.

    :param query: [heads, rows, head_dim].
    :param keys: [kv_heads, seen, head_dim]; `values` likewise.
    :param mask: as `segment_mask` makes it.
    :return: [rows, heads, head_dim].
    """
    heads, rows, head_dim = query.shape
    kv_heads = keys.shape[0]
    if rows <= _FOLD_LIMIT:
        folded = query.reshape(kv_heads, heads // kv_heads * rows, head_dim)
        if mask is not None and _products_are_faster(query, rows * keys.shape[1]):
            scores = torch.baddbmm(mask, folded, keys.transpose(1, 2), alpha=scale)  # [kv_heads, group * rows, seen]
            out = torch.bmm(scores.softmax(dim=-1), values)
        else:
            out = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask, scale=scale)
    else:
        out = F.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
    return out.view(heads, rows, head_dim).transpose(0, 1)


def _products_are_faster(query: Tensor, pairs: int) -> bool:
    """Whether two plain products beat the fused kernel.

    Measured on two cores with avx512_bf16 and no AMX: 16 rows of 700 in 161 in place of 226 microseconds, 60 rows in
    353 in place of 769; below about 16 rows of 256 the fused kernel is ahead.
    """
    return pairs >= _PRODUCTS_FROM and _may_take_products(query.dtype, query.device)


def _may_take_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether plain products are ever faster: in bfloat16 on processors without AMX, which the fused kernel uses.

    With AMX, on one core, 16 rows of 300 take the fused kernel 200 and products 280 microseconds, 60 rows of 1,000 a
    third of the products' time. In float32 the fused kernel always is ahead.
    """
    return dtype == torch.bfloat16 and device.type == "cpu" and not torch.cpu._is_amx_tile_supported()


def packed_attention(
    module: nn.Module,
    query: Tensor,  # [1, heads, rows, head_dim]
    key: Tensor,  # [1, kv_heads, rows, head_dim]
    value: Tensor,  # [1, kv_heads, rows, head_dim]
    _attention_mask: Tensor | None,
    scaling: float | None = None,
    segments: Sequence[PackedSegment] | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention signature; returns [1, rows, heads, head_dim] and no weights."""
    if segments is None or softcap is not None or s_aux is not None:
        raise EngineFault("this architecture's attention (soft caps, sinks or a lost KV cache) is not supported")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise EngineFault("the attention layer has no index")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return attend_packed(segments, layer, query[0], key[0], value[0], scale)[None], None


def register() -> None:
    """Make the attention known to transformers; harmless when repeated."""
    AttentionInterface.register(NAME, packed_attention)
