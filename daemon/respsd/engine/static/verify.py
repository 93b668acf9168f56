"""Verification in fixed shapes: the target's forward, its best tokens, the walk, and the KV rows that it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.engine.kv_cache import KvArena
from respsd.engine.sampling import argmax_rows
from respsd.engine.static.batch_rows import Places, batch_rows
from respsd.engine.target import Target


@dataclass(frozen=True, slots=True)
class VerifyShape:
    """What a verification's shapes depend on."""

    batch: int
    nodes: int
    depth: int
    """Of the deepest node at most."""
    columns: int


class StaticVerify:
    """The function for one shape."""

    def __init__(self, target: Target, arena: KvArena, shape: VerifyShape) -> None:
        self._target = target
        self._arena = arena
        self._shape = shape

    def __call__(
        self,
        numbers: Tensor,
        tokens: Tensor,
        parents: Tensor,
        depths: Tensor,
        log_probs: Tensor,
        entropies: Tensor,
        visible: Tensor,
    ) -> tuple[Tensor, ...]:
        """What the host has to know, float64 [batch, 6, nodes]: tokens, parents, depths, log-probs, the root's entropy
        and the target's best token after each node, -1 where its logits are not finite; then logits and features by
        sequence and node.

        :param numbers: int64 [batch, 4]: first slot, committed rows, nodes of the tree, and 1 where the best tokens are
            the ones that are drawn, so that the walk can be taken and its rows kept at once.
        :param tokens: int64 [batch, nodes], as are `parents` and `depths`; `log_probs` float32, `entropies`
            [batch, 1], `visible` [batch, nodes, nodes].
        """
        starts, lengths, sizes, greedy = numbers.unbind(dim=1)
        places = Places(starts, lengths, sizes)
        rows = batch_rows(self._arena, places, visible, self._shape.columns, self._target.group)
        logits, features = self._target.run(tokens.flatten(), (depths + lengths[:, None]).flatten(), [rows])
        best = argmax_rows(logits).view(tokens.shape)  # [batch, nodes]
        sound = log_probs.isfinite().all(dim=1) & (greedy > 0)
        self._keep(places, walk_on_device(tokens, parents, best, sizes, sound, self._shape.depth))
        parts = (tokens, parents, depths, log_probs, entropies.expand_as(tokens), best)
        told = torch.stack([each.double() for each in parts], dim=1)
        batch, nodes = tokens.shape
        return told, logits.view(batch, nodes, -1), features.view(batch, nodes, -1)

    def _keep(self, places: Places, path: Tensor) -> None:
        """Move the path's KV rows behind the prefix. :param path: int64 [batch, steps], nodes, -1 behind its end."""
        begin = (places.starts + places.lengths)[:, None]
        unread = self._arena.unread_slot
        source = torch.where(path >= 0, begin + path, unread)
        to = torch.where(path >= 0, begin + torch.arange(path.shape[1], device=path.device), unread)
        # The rows that are read are copied first, so the two may overlap.
        self._arena.data.index_copy_(3, to.flatten(), self._arena.data.index_select(3, source.flatten()))


def walk_on_device(tokens: Tensor, parents: Tensor, best: Tensor, sizes: Tensor, sound: Tensor, depth: int) -> Tensor:
    """The nodes that `walk.walk` visits when the best tokens are drawn, int64 [batch, depth + 1], -1 behind their end.

    :param tokens: int64 [batch, nodes], as are `parents` and `best`, the target's token after each node.
    :param sizes: int64 [batch], nodes that there are; `sound` bool [batch]: false where no more than the root is kept.
    """
    batch, nodes = tokens.shape
    number = torch.arange(nodes, device=tokens.device).expand(batch, -1)
    is_drawn = (tokens == best.gather(1, parents)) & (number < sizes[:, None]) & sound[:, None]
    accepted, jump, reach = is_drawn | (number == 0), parents, 1
    while reach <= depth:
        accepted = accepted & accepted.gather(1, jump)
        jump = jump.gather(1, jump)
        reach *= 2
    # Children of one node have distinct tokens, so the accepted nodes are a path, and numbers grow downwards.
    accepted = accepted & (sizes > 0)[:, None]
    path = torch.where(accepted, number, nodes).sort(dim=1).values[:, : depth + 1]
    return torch.where(path < nodes, path, -1)
