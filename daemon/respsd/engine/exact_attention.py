"""Attention whose result for a row depends on its query and on the keys on its path, and on nothing else, to the bit.

Plain decoding sees a path as consecutive rows of the cache; verification sees its end as nodes of a tree, between other
nodes, in a product with other rows. Floating-point sums depend on their order, so in half precision the two often
part at near-ties. Here the order is fixed by absolute position: keys are taken in blocks of `_BLOCK` positions that
start at multiples of it, every block is summed in one way, and blocks are added one after the other. Blocks that lie
wholly in the prefix are shared by all rows; behind them each row gets its own path, gathered into its positions. All
sums are taken in float32, in products of at least `_ROWS` rows, whose kernels give a row the same bits however many
there are (`exactness` makes sure of that on the machine at hand).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from respsd.engine.kv_cache import SequenceCache

_BLOCK = 64
_ROWS = 8
"""Fewest rows of a product: matrix libraries have other kernels, which sum in another order, for very few."""


@dataclass(frozen=True, slots=True)
class ExactSegment:
    """One sequence's rows in a packed forward; see `attention.PackedSegment`."""

    cache: SequenceCache
    rows: slice
    shared: int
    """Whole blocks that every row sees in full or as `hidden` says."""
    hidden: Tensor | None
    """bool [rows, shared * block]: keys that a row of a plain run does not see."""
    path: Tensor | None
    """int64 [rows, positions]: rows of the cache that hold a node's path behind the shared blocks; behind the path's
    end its own row."""
    past_path: Tensor | None
    """bool [rows, positions]: behind the path's end."""

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """See `PackedSegment`."""
        kv_heads, count, head_dim = keys.shape
        group = query.shape[0] // kv_heads
        seen = self.cache.write(layer, self.cache.length, keys, values)
        # Rows of one KV head: [kv_heads, rows * group, head_dim], a row's group side by side.
        folded = query.view(kv_heads, group, count, head_dim).transpose(1, 2).reshape(kv_heads, -1, head_dim)
        folded = folded.float() * scale
        scores = torch.cat((self._shared_scores(folded, seen[0]), self._path_scores(folded, seen[0])), dim=2)
        weights = (scores - scores.amax(dim=(2, 3), keepdim=True)).exp()  # [kv_heads, rows * group, blocks, block]
        totals = _one_by_one(weights.sum(dim=3))  # [kv_heads, rows * group]
        shared, path = weights.tensor_split((self.shared,), dim=2)
        sums = torch.cat((self._shared_sums(shared, seen[1]), self._path_sums(path, seen[1])), dim=2)
        out: Tensor = _one_by_one(sums) / totals[..., None]  # [kv_heads, rows * group, head_dim]
        out = out.view(kv_heads, count, group, head_dim).transpose(0, 1).reshape(count, kv_heads * group, head_dim)
        return out.to(query.dtype)

    def _shared_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Of the shared blocks, [kv_heads, rows * group, shared, block]."""
        blocks = _padded(keys, self.shared * _BLOCK)  # [kv_heads, shared * block, head_dim]
        scores = _product(query, blocks.transpose(1, 2))
        if self.hidden is not None:
            count = self.hidden.shape[0]
            by_row = scores.view(scores.shape[0], count, -1, self.shared * _BLOCK)  # [kv_heads, rows, group, positions]
            by_row.masked_fill_(self.hidden[:, None], float("-inf"))
        return scores.view(*scores.shape[:2], self.shared, _BLOCK)

    def _shared_sums(self, weights: Tensor, values: Tensor) -> Tensor:
        """Weighted values of each shared block, [kv_heads, rows * group, shared, head_dim]."""
        kv_heads, rows, shared, _ = weights.shape
        blocks = _padded(values, shared * _BLOCK).reshape(kv_heads * shared, _BLOCK, values.shape[2])
        sums = _product(weights.transpose(1, 2).reshape(-1, rows, _BLOCK), blocks)
        return sums.view(kv_heads, shared, rows, values.shape[2]).transpose(1, 2)

    def _path_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Of each row's own blocks, [kv_heads, rows * group, own, block]."""
        kv_heads, rows, head_dim = query.shape
        if self.path is None or self.past_path is None:
            return query.new_empty((kv_heads, rows, 0, _BLOCK))
        count, positions = self.path.shape
        gathered = keys[:, self.path.flatten()].float().view(kv_heads * count, positions, head_dim)
        scores = _product(query.reshape(kv_heads * count, -1, head_dim), gathered.transpose(1, 2))
        scores = scores.view(kv_heads, count, -1, positions).masked_fill(self.past_path[:, None], float("-inf"))
        return scores.view(kv_heads, rows, -1, _BLOCK)

    def _path_sums(self, weights: Tensor, values: Tensor) -> Tensor:
        """Weighted values of each of a row's own blocks, [kv_heads, rows * group, own, head_dim]."""
        kv_heads, rows, own, _ = weights.shape
        head_dim = values.shape[2]
        if self.path is None:
            return weights.new_empty((kv_heads, rows, 0, head_dim))
        count = self.path.shape[0]
        gathered = values[:, self.path.flatten()].float().view(kv_heads * count * own, _BLOCK, head_dim)
        by_block = weights.view(kv_heads, count, -1, own, _BLOCK).transpose(2, 3)  # a row's group side by side
        sums = _product(by_block.reshape(kv_heads * count * own, -1, _BLOCK), gathered)
        return sums.view(kv_heads, count, own, -1, head_dim).transpose(2, 3).reshape(kv_heads, rows, own, head_dim)


def exact_segment(cache: SequenceCache, rows: slice, visible: Tensor | None) -> ExactSegment:
    """A segment behind the cache's prefix.

    :param visible: bool [rows, rows]: row j is row i or an ancestor of it, ancestors first; None: a plain run of rows.
    """
    count, length, device = rows.stop - rows.start, cache.length, cache.data.device
    if visible is None:
        shared = -(-(length + count) // _BLOCK)
        last = torch.arange(length, length + count, device=device)
        hidden = torch.arange(shared * _BLOCK, device=device) > last[:, None]
        return ExactSegment(cache, rows, shared, hidden, None, None)
    shared = length // _BLOCK
    first = shared * _BLOCK
    rank = visible.cumsum(dim=1) - 1  # [rows, rows]: a visible row's place on the path
    own = -(-(length - first + int(visible.sum(dim=1).max())) // _BLOCK) * _BLOCK
    path = torch.arange(length, length + count, device=device)[:, None].repeat(1, own)  # [rows, own]
    path[:, : length - first] = torch.arange(first, length, device=device)
    row, ancestor = visible.nonzero(as_tuple=True)
    path[row, rank[row, ancestor] + (length - first)] = ancestor + length
    ends = visible.sum(dim=1) + (length - first)
    past_path = torch.arange(own, device=device) >= ends[:, None]
    return ExactSegment(cache, rows, shared, None, path, past_path)


def _padded(rows: Tensor, count: int) -> Tensor:
    """The first `count` rows of [kv_heads, seen, head_dim] in float32; zeros behind the last seen one."""
    taken = rows[:, :count].float()
    return taken if taken.shape[1] == count else F.pad(taken, (0, 0, 0, count - taken.shape[1]))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """[batch, rows, inner] times [batch, inner, columns] in products of `_ROWS` rows at least."""
    rows = left.shape[1]
    if rows >= _ROWS:
        return torch.bmm(left, right)
    return torch.bmm(F.pad(left, (0, 0, 0, _ROWS - rows)), right)[:, :rows].contiguous()


def _one_by_one(parts: Tensor) -> Tensor:
    """The sum over dimension 2, added in order, so that parts of zero at the end change nothing."""
    return parts.cumsum(dim=2).select(2, -1)
