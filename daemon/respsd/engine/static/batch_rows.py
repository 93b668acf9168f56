"""The rows of many sequences in one attention of fixed shapes: KV by slot numbers, a padded mask for trees.

Words: the *arena* is a model's KV memory; a sequence's rows stand in it from its first slot on. A *column* is one of
the rows that a sequence's new rows may look at: first the committed prefix, behind it the rows of the tree so far.
Columns that a sequence does not have, up to the bucket's number, are read from a slot that holds zeros, and rows that
it does not have are written to a slot that nobody reads: what other sequences left in memory reaches no result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from respsd.engine.kv_cache import KvArena


@dataclass(frozen=True, slots=True)
class Places:
    """Where each sequence of the batch stands, all int64 [batch]; an empty place of the batch is all zeros."""

    starts: Tensor
    """First slots."""
    lengths: Tensor
    """Committed rows."""
    counts: Tensor
    """New rows."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a packed forward, the same number of each sequence; see `attention.PackedSegment`."""

    data: Tensor  # [layers, 2, kv_heads, slots, head_dim], the arena's
    written: Tensor  # int64 [batch * rows], the slot of each row
    seen: Tensor  # int64 [batch * columns], the slot of each column
    mask: Tensor  # [batch, 1, group * rows, columns], additive

    @property
    def rows(self) -> slice:
        """All of the forward's."""
        return slice(None)

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See `PackedSegment`."""
        heads, total, head_dim = query.shape
        kv_heads, batch = keys.shape[0], self.mask.shape[0]
        rows, group = total // batch, heads // kv_heads
        cached_keys, cached_values = self.data[layer].unbind()
        cached_keys.index_copy_(1, self.written, keys)
        cached_values.index_copy_(1, self.written, values)
        seen_keys, seen_values = (
            cached.index_select(1, self.seen).view(kv_heads, batch, -1, head_dim).transpose(0, 1)
            for cached in (cached_keys, cached_values)
        )  # [batch, kv_heads, columns, head_dim]
        folded = query.reshape(kv_heads, group, batch, rows, head_dim).permute(2, 0, 1, 3, 4)
        folded = folded.reshape(batch, kv_heads, group * rows, head_dim)
        out = F.scaled_dot_product_attention(folded, seen_keys, seen_values, attn_mask=self.mask, scale=scale)
        out = out.view(batch, kv_heads, group, rows, head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(total, heads, head_dim)


def batch_rows(arena: KvArena, places: Places, visible: Tensor, columns: int, group: int, behind: int = 0) -> BatchRows:
    """Lay the rows out.

    :param visible: bool [batch, rows, behind + rows]: may a row see a row of the tree; every row sees itself, also
        those that a sequence does not have.
    :param columns: the bucket: at least each sequence's length and all rows of its tree.
    :param group: query heads of a KV head.
    :param behind: rows of the tree that earlier passes wrote; the new ones go behind them.
    """
    batch, rows, tree = visible.shape
    device = visible.device
    row = torch.arange(rows, device=device)
    begin = (places.starts + places.lengths)[:, None]  # [batch, 1]
    written = torch.where(row < places.counts[:, None], begin + behind + row, arena.unread_slot)  # [batch, rows]
    column = torch.arange(columns, device=device)
    past = column - places.lengths[:, None]  # [batch, columns]: place in the tree, negative in the prefix
    used = torch.where(places.counts > 0, places.lengths + behind + places.counts, 0)
    seen = torch.where(column < used[:, None], places.starts[:, None] + column, arena.zero_slot)  # [batch, columns]
    in_tree = visible.gather(2, past.clamp(0, tree - 1)[:, None].expand(batch, rows, columns))
    allowed = (past < 0)[:, None] | (in_tree & (past < tree)[:, None])  # [batch, rows, columns]
    mask = torch.zeros((batch, rows, columns), dtype=arena.data.dtype, device=device)
    mask = mask.masked_fill_(~allowed, float("-inf"))[:, None].expand(batch, group, rows, columns)
    return BatchRows(arena.data, written.flatten(), seen.flatten(), mask.reshape(batch, 1, group * rows, columns))


def bucket(number: int, least: int = 1) -> int:
    """The power of two that holds a number."""
    return max(least, 1 << (number - 1).bit_length())
