"""Draft trees in fixed shapes: the drafter's waiting rows, all levels and the choice of nodes as one function.

The same trees as `tree.draft_trees` makes, node for node. Nothing is left out of a level here, since finding out what
could be would take a look from the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.control.action import Action
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import KvArena
from respsd.engine.static.batch_rows import Places, batch_rows


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What a draft's shapes depend on."""

    batch: int
    action: Action
    pending: int
    """Rows that wait for the drafter, of each sequence at most."""
    columns: int


@dataclass(frozen=True, slots=True)
class _Level:
    """The frontier of all sequences; [batch, top_k] but for the last two."""

    tokens: Tensor  # int64, draft ids
    scores: Tensor  # float32, cumulative log-probabilities
    numbers: Tensor  # int64, candidate numbers
    features: Tensor  # [batch, top_k, hidden], outputs of the parents
    visible: Tensor  # bool [batch, top_k, rows of the tree]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Everything put forward; see `growth.Candidates`. All [batch, pool]."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor
    depths: Tensor


class StaticDraft:
    """The function for one shape."""

    def __init__(self, drafter: Drafter, arena: KvArena, shape: DraftShape) -> None:
        self._drafter = drafter
        self._arena = arena
        self._shape = shape
        self._group = drafter.config.heads // drafter.config.kv_heads

    def __call__(
        self, starts: Tensor, lengths: Tensor, counts: Tensor, tokens: Tensor, features: Tensor
    ) -> tuple[Tensor, ...]:
        """Tokens, parents, depths and log-probs, [batch, total_tokens], visibility and the root's entropy, [batch].

        :param starts: int64 [batch], as are `lengths` and `counts`: see `Places`; the new rows are those that wait.
        :param tokens: int64 [batch, pending], the token after each waiting row; the last one's is the root.
        :param features: [batch, pending, 3 * target hidden].
        """
        waiting = Places(starts, lengths, counts)
        last, root = self._catch_up(waiting, tokens, features)  # [batch, hidden], [batch]
        log_probs = self._drafter.log_probs(last)  # [batch, draft_vocab]
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        pool = self._grow(waiting, log_probs, last)
        return (*self._select(pool, root), entropy)

    def _catch_up(self, waiting: Places, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        batch, pending = tokens.shape
        device = tokens.device
        causal = torch.ones((pending, pending), dtype=torch.bool, device=device).tril().expand(batch, -1, -1)
        rows = batch_rows(self._arena, waiting, causal, self._shape.columns, self._group)
        positions = waiting.lengths[:, None] + torch.arange(pending, device=device)
        out = self._drafter.forward(
            [rows],
            tokens.flatten(),
            self._drafter.fuse(features.flatten(0, 1)),
            self._drafter.rotation_of(positions.flatten()),
        )  # [batch * pending, hidden]
        end = (waiting.counts - 1).clamp(min=0)[:, None]  # [batch, 1]
        hidden = out.view(batch, pending, -1)
        return hidden.gather(1, end[:, :, None].expand(-1, -1, hidden.shape[2]))[:, 0], tokens.gather(1, end)[:, 0]

    def _grow(self, waiting: Places, log_probs: Tensor, last: Tensor) -> _Pool:
        action, batch, device = self._shape.action, self._shape.batch, last.device
        prefix, is_there = waiting.lengths + waiting.counts, (waiting.counts > 0).long()
        width = torch.arange(action.top_k, device=device).expand(batch, -1)
        own = torch.eye(action.top_k, dtype=torch.bool, device=device).expand(batch, -1, -1)
        best = log_probs.topk(action.top_k)  # [batch, top_k]
        level = _Level(best.indices, best.values, width, last[:, None].expand(-1, action.top_k, -1), own)
        tokens, scores, parents = [level.tokens], [level.scores], [torch.full_like(width, -1)]
        put_forward = action.top_k
        for depth in range(action.depth):
            behind = depth * action.top_k
            places = Places(waiting.starts, prefix, is_there * action.top_k)
            rows = batch_rows(self._arena, places, level.visible, self._shape.columns, self._group, behind)
            hidden = self._drafter.forward(
                [rows],
                self._drafter.draft_to_target[level.tokens.flatten()],
                level.features.flatten(0, 1),
                self._drafter.rotation_of((prefix + depth).repeat_interleave(action.top_k)),
            )  # [batch * top_k, hidden]
            children = self._drafter.log_probs(hidden).topk(action.top_k)  # [batch * top_k, top_k]
            tokens.append(children.indices.view(batch, -1))
            scores.append((children.values.view(batch, action.top_k, -1) + level.scores[:, :, None]).flatten(1))
            parents.append(level.numbers.repeat_interleave(action.top_k, dim=1))
            frontier = scores[-1].topk(action.top_k)
            level = _next(level, frontier.indices, frontier.values, tokens[-1], hidden, own, put_forward)
            put_forward += action.top_k**2
        sizes = [each.shape[1] for each in tokens]
        depths = [torch.full((batch, size), depth, device=device) for depth, size in enumerate(sizes, start=1)]
        return _Pool(torch.cat(tokens, 1), torch.cat(scores, 1), torch.cat(parents, 1), torch.cat(depths, 1))

    def _select(self, pool: _Pool, root: Tensor) -> tuple[Tensor, ...]:
        """See `tree._select`."""
        batch, size = pool.tokens.shape
        count = self._shape.action.total_tokens - 1
        order = pool.log_probs.sort(dim=1, descending=True, stable=True).indices
        kept = order[:, :count].sort(dim=1).values  # [batch, nodes - 1], candidate numbers
        node_of = torch.zeros((batch, size + 1), dtype=torch.int64, device=root.device)
        node_of.scatter_(1, kept, torch.arange(1, count + 1, device=root.device).expand(batch, -1))
        # Parent number -1 stands for the root: the last place, which stays 0.
        parents = pool.parents.gather(1, kept)
        parents = node_of.gather(1, torch.where(parents < 0, size, parents))
        zero = torch.zeros_like(root)[:, None]
        parents = torch.cat((zero, parents), dim=1)
        return (
            torch.cat((root[:, None], self._drafter.draft_to_target[pool.tokens.gather(1, kept)]), dim=1),
            parents,
            torch.cat((zero, pool.depths.gather(1, kept)), dim=1),
            torch.cat((zero.float(), pool.log_probs.gather(1, kept)), dim=1),
            ancestors_of(parents, self._shape.action.depth + 1),
        )


def _next(
    level: _Level, best: Tensor, scores: Tensor, tokens: Tensor, hidden: Tensor, own: Tensor, put_forward: int
) -> _Level:
    """The next frontier. :param best: int64 [batch, top_k], places among the level's children; `own` the unit mask."""
    batch, top_k = best.shape
    parents = (best // top_k)[:, :, None]  # [batch, top_k, 1], rows of the level
    features = hidden.view(batch, top_k, -1)
    return _Level(
        tokens=tokens.gather(1, best),
        scores=scores,
        numbers=put_forward + best,
        features=features.gather(1, parents.expand(-1, -1, features.shape[2])),
        visible=torch.cat((level.visible.gather(1, parents.expand(-1, -1, level.visible.shape[2])), own), dim=2),
    )


def ancestors_of(parents: Tensor, depth: int) -> Tensor:
    """`tree.ancestors` of a batch: bool [batch, nodes, nodes]. :param parents: int64 [batch, nodes]."""
    batch, nodes = parents.shape
    seen = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
    jump, reach = parents, 1
    while reach <= depth:
        seen = seen | seen.gather(1, jump[:, :, None].expand(-1, -1, nodes))
        jump = jump.gather(1, jump)
        reach *= 2
    return seen
