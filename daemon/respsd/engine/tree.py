"""The draft tree: how the drafter's guesses for one step are ranked and laid out for verification.

EAGLE-2's dynamic tree as EAGLE-3 uses it. From the root, `top_k` children; then `depth` times the `top_k` best nodes
of the last level get `top_k` children each (see `growth`). All these candidates are ranked by cumulative
log-probability and the best `total_tokens - 1` stand in the tree behind the root. Nodes are numbered level by level, in
the order in which they were put forward, so a parent always comes before its children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.control.action import Action
from respsd.engine.drafter import Drafter
from respsd.engine.growth import Candidates, Growth, grow_all
from respsd.engine.kv_cache import SequenceCache


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The nodes of one step; node 0 is the root, the last sampled token."""

    tokens: Tensor  # int64 [nodes], target ids
    parents: Tensor  # int64 [nodes]; the root's is 0, itself
    depths: Tensor  # int64 [nodes]; the root's is 0
    log_probs: Tensor  # float32 [nodes], cumulative; the root's is 0
    visible: Tensor | None  # bool [nodes, nodes]: j is i or an ancestor of i; None for the root alone
    root_entropy: Tensor | None  # float32 []: of the drafter's distribution after the root, nats

    @property
    def size(self) -> int:
        """Nodes, root included."""
        return self.tokens.shape[0]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What one sequence wants drafted."""

    cache: SequenceCache
    """The drafter's, holding all rows up to the root's; the tree's rows are scratch behind them."""
    root: Tensor  # int64 [1], the last sampled token
    action: Action


def root_only(root: Tensor) -> DraftTree:
    """The tree of plain decoding. :param root: int64 [1]."""
    zero = torch.zeros_like(root)
    return DraftTree(root, zero, zero, zero.float(), None, None)


def draft_tree(drafter: Drafter, cache: SequenceCache, root: Tensor, output: Tensor, action: Action) -> DraftTree:
    """Draft one sequence's tree for a step; see `draft_trees`."""
    return draft_trees(drafter, [DraftRequest(cache, root, action)], output)[0]


def draft_trees(drafter: Drafter, requests: Sequence[DraftRequest], outputs: Tensor) -> list[DraftTree]:
    """Draft a step's trees, one pass of the drafter a level for all sequences, each with its own depth and width.

    :param outputs: [sequences, hidden], the drafter's outputs at the rows that hold the roots.
    """
    growths = [
        Growth(drafter, request.cache, request.action.depth, request.action.top_k, request.action.total_tokens - 1)
        for request in requests
    ]
    grow_all(drafter, growths, outputs)
    return [
        _select(drafter, request.root, growth.candidates(), request.action.total_tokens - 1)
        for request, growth in zip(requests, growths, strict=True)
    ]


def grow(drafter: Drafter, cache: SequenceCache, output: Tensor, depth: int, top_k: int) -> Candidates:
    """Put forward all `top_k + depth * top_k**2` candidates of one sequence, or fewer where the draft vocabulary is
    smaller. :param output: [1, hidden], as of `draft_trees`.
    """
    growth = Growth(drafter, cache, depth, top_k)
    grow_all(drafter, [growth], output)
    return growth.candidates()


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """bool [nodes, nodes]: is j node i or one of its ancestors. Pointer doubling, log2(depth) rounds.

    :param parents: int64 [nodes]; the root points at itself.
    :param depth: the greatest depth of a node.
    """
    seen = torch.eye(parents.shape[0], dtype=torch.bool, device=parents.device)
    jump, reach = parents, 1
    while reach <= depth:
        seen = seen | seen[jump]
        jump = jump[jump]
        reach *= 2
    return seen


def _select(drafter: Drafter, root: Tensor, candidates: Candidates, count: int) -> DraftTree:
    """Keep the `count` best candidates behind the root.

    The sort is stable, so of equal scores the lower number is kept: a child never outranks its parent (its score is
    at most the parent's) and the kept set is closed under "parent".
    """
    order = candidates.log_probs.sort(descending=True, stable=True).indices
    kept = order[:count].sort().values  # [nodes - 1], candidate numbers
    node_of = torch.zeros(candidates.tokens.shape[0] + 1, dtype=torch.int64, device=root.device)
    node_of[kept] = torch.arange(1, kept.shape[0] + 1, device=root.device)
    zero = torch.zeros_like(root)
    # Parent number -1 reads the last slot, which stays 0: the root.
    parents = torch.cat((zero, node_of[candidates.parents[kept]]))
    depths = torch.cat((zero, candidates.depths[kept]))
    return DraftTree(
        tokens=torch.cat((root, drafter.draft_to_target[candidates.tokens[kept]])),
        parents=parents,
        depths=depths,
        log_probs=torch.cat((zero.float(), candidates.log_probs[kept])),
        visible=ancestors(parents, candidates.levels),
        root_entropy=candidates.root_entropy,
    )
