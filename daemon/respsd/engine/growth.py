"""Growing draft trees level by level: the frontiers of all sequences go through the drafter in one pass a level.

A tree keeps its best candidates only, and a child's score is at most its parent's. So once `kept` candidates have been
put forward, a frontier node whose score is not above the `kept`-th best of them can have no descendant in the tree (of
equal scores the earlier candidate is kept): it is not expanded, and growing ends where no node is left to expand. The
tree is the same, node for node; this saves passes where the drafter is sure of little and rows where it is sure of
much. The look at the scores needs them on the host, which is free on the processor and would cost a synchronisation a
level elsewhere, so elsewhere whole frontiers are expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.engine.attention import Segment
from respsd.engine.drafter import Drafter, join
from respsd.engine.kv_cache import SequenceCache


@dataclass(frozen=True, slots=True)
class Candidates:
    """Everything that drafting put forward, in node order.

    `top_k` below the root, then the children of each level's frontier: those of one node side by side, the best first.
    """

    tokens: Tensor  # int64 [pool], draft ids
    log_probs: Tensor  # float32 [pool], cumulative
    parents: Tensor  # int64 [pool], candidate numbers; -1 for the root
    depths: Tensor  # int64 [pool], from 1
    root_entropy: Tensor  # float32 []
    levels: int
    """The greatest depth."""


class Growth:
    """One sequence's tree while it grows."""

    def __init__(self, drafter: Drafter, cache: SequenceCache, depth: int, top_k: int, kept: int | None = None) -> None:
        """Nothing is put forward yet.

        :param cache: the drafter's; the tree's rows are scratch behind its prefix.
        :param depth: expansions after the first level.
        :param kept: candidates that the tree will keep; None: all of them are wanted.
        """
        self._drafter = drafter
        self._cache = cache
        self._levels_left = depth
        self._width = min(top_k, drafter.config.draft_vocab_size)
        self._kept = kept if drafter.layout.device.type == "cpu" else None
        # Of every level so far:
        self._tokens: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._pool = 0
        self._best = torch.empty(0)  # the scores of the best candidates, `kept` at most
        # The frontier, the best first:
        self.tokens: Tensor = torch.empty(0)  # int64 [frontier], draft ids
        self.features: Tensor = torch.empty(0)  # [frontier, hidden], of their parents
        self._frontier_scores = torch.empty(0)  # float32 [frontier]
        self._numbers = torch.empty(0)  # int64 [frontier], candidate numbers
        self._visible = torch.empty(0)  # bool [frontier, tree rows]
        self._rows_written = 0

    def begin(self, log_probs: Tensor, entropy: Tensor, output: Tensor) -> None:
        """Put forward the root's children.

        :param log_probs: float32 [draft_vocab], after the root; `entropy` [] of them; `output` [1, hidden].
        """
        self._root_entropy = entropy
        best = log_probs.topk(self._width)  # [k]
        self._put_forward(best.indices, best.values, torch.full_like(best.indices, -1))
        self._set_frontier(best.indices, best.values, torch.arange(self._width, device=output.device))
        self.features = output.expand(self.count, -1)
        self._visible = torch.eye(self.count, dtype=torch.bool, device=output.device)

    @property
    def count(self) -> int:
        """Frontier nodes that are to be expanded; 0 once the tree has grown."""
        return self.tokens.shape[0] if self._levels_left else 0

    @property
    def position(self) -> int:
        """Rotary position of the frontier's rows."""
        return self._cache.length + len(self._tokens) - 1

    def segment(self, first: int) -> Segment:
        """The frontier's rows in a pass, from the pass's row `first` on."""
        return self._drafter.frontier(self._cache, slice(first, first + self.count), self._rows_written, self._visible)

    def expand(self, log_probs: Tensor, hidden: Tensor) -> None:
        """Put forward the frontier's children and choose the next frontier among them.

        :param log_probs: float32 [frontier, draft_vocab], after each node; `hidden` [frontier, hidden], its outputs.
        """
        rows = self.count
        self._levels_left -= 1
        self._rows_written += rows
        best = log_probs.topk(self._width)  # [rows, k]
        scores = (best.values + self._frontier_scores[:, None]).flatten()  # [rows * k]
        tokens, first = best.indices.flatten(), self._pool
        self._put_forward(tokens, scores, self._numbers.repeat_interleave(self._width))
        if not self._levels_left:
            return
        frontier = scores.topk(min(self._width, scores.shape[0]))
        self._set_frontier(tokens[frontier.indices], frontier.values, first + frontier.indices)
        parent_rows = frontier.indices[: self.count] // self._width
        self.features = hidden[parent_rows]
        own = torch.eye(self.count, dtype=torch.bool, device=hidden.device)
        self._visible = torch.cat((self._visible[parent_rows], own), dim=1)

    def candidates(self) -> Candidates:
        """All that was put forward."""
        sizes = torch.tensor([level.shape[0] for level in self._tokens], device=self.tokens.device)
        levels = len(self._tokens)
        return Candidates(
            tokens=join(self._tokens),
            log_probs=join(self._scores),
            parents=join(self._parents),
            depths=torch.arange(1, levels + 1, device=sizes.device).repeat_interleave(sizes, output_size=self._pool),
            root_entropy=self._root_entropy,
            levels=levels,
        )

    def _put_forward(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)
        self._pool += tokens.shape[0]
        if self._kept is not None and self._levels_left:
            best = torch.cat((self._best, scores))
            self._best = best.topk(self._kept).values if best.shape[0] > self._kept else best

    def _set_frontier(self, tokens: Tensor, scores: Tensor, numbers: Tensor) -> None:
        """Take the nodes, the best first, that can have descendants in the tree."""
        count = tokens.shape[0]
        if self._kept is not None and self._pool >= self._kept and self._levels_left:
            count = int((scores > self._best.min()).sum()) if self._kept else 0
        self.tokens, self._frontier_scores, self._numbers = tokens[:count], scores[:count], numbers[:count]


def grow_all(drafter: Drafter, growths: Sequence[Growth], outputs: Tensor) -> None:
    """Grow all trees to their end.

    :param outputs: [sequences, hidden], the drafter's outputs at the rows that hold the roots.
    """
    log_probs = drafter.log_probs(outputs)  # [sequences, draft_vocab]
    entropies = -(log_probs.exp() * log_probs).sum(dim=-1)
    for number, growth in enumerate(growths):
        growth.begin(log_probs[number], entropies[number], outputs[number : number + 1])
    while growing := [growth for growth in growths if growth.count]:
        segments, first = [], 0
        for growth in growing:
            segments.append(growth.segment(first))
            first += growth.count
        hidden = drafter.forward(
            segments,
            drafter.draft_to_target[join([growth.tokens for growth in growing])],
            join([growth.features for growth in growing]),
            drafter.rotation_at([growth.position for growth in growing], [growth.count for growth in growing]),
        )  # [rows, hidden]
        log_probs = drafter.log_probs(hidden)  # [rows, draft_vocab]
        for growth, segment in zip(growing, segments, strict=True):
            growth.expand(log_probs[segment.rows], hidden[segment.rows])
