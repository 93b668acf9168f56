"""The draft tree: how the drafter's guesses for one step are grown, ranked and laid out for verification.

EAGLE-2's dynamic tree as EAGLE-3 uses it. From the root, `top_k` children; then `depth` times the `top_k` best nodes
of the last level get `top_k` children each. All these candidates are ranked by cumulative log-probability and the
best `total_tokens - 1` stand in the tree behind the root. Nodes are numbered level by level, in the order in which
they were put forward, so a parent always comes before its children.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.control.action import Action
from respsd.engine.drafter import Drafter
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
class _Candidates:
    """Everything that drafting put forward, in node order."""

    tokens: Tensor  # int64 [pool], draft ids
    log_probs: Tensor  # float32 [pool], cumulative
    parents: Tensor  # int64 [pool], candidate numbers; -1 for the root
    depths: Tensor  # int64 [pool], from 1
    root_entropy: Tensor  # float32 []


def root_only(root: Tensor) -> DraftTree:
    """The tree of plain decoding. :param root: int64 [1]."""
    zero = torch.zeros_like(root)
    return DraftTree(root, zero, zero, zero.float(), None, None)


def draft_tree(drafter: Drafter, cache: SequenceCache, root: Tensor, output: Tensor, action: Action) -> DraftTree:
    """Draft one step's tree.

    :param cache: the drafter's, holding all rows up to the root's; the tree's rows are scratch behind them.
    :param root: int64 [1], the last sampled token.
    :param output: [1, hidden], the drafter's output at the row that holds the root.
    """
    candidates = _grow(drafter, cache, output, action.depth, action.top_k)
    return _select(drafter, root, candidates, action.total_tokens - 1, deepest=action.depth + 1)


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


def _grow(drafter: Drafter, cache: SequenceCache, output: Tensor, depth: int, top_k: int) -> _Candidates:
    """Put forward `top_k + depth * top_k**2` candidates, or fewer where the draft vocabulary is smaller."""
    device = output.device
    after_root = drafter.log_probs(output)  # [1, draft_vocab]
    best = after_root.topk(min(top_k, drafter.config.draft_vocab_size))  # [1, k]
    width = best.indices.shape[1]
    tokens, scores = best.indices[0], best.values[0]  # the frontier's, [k]
    features = output.expand(width, -1)  # [k, hidden]
    numbers = torch.arange(width, device=device)  # the frontier's candidate numbers
    own = torch.eye(width, dtype=torch.bool, device=device)
    cos, sin = drafter.rotation(cache.length, depth)  # [depth, head_dim]
    visible = own  # [k, k * (level + 1)]
    all_tokens, all_scores = [tokens], [scores]
    all_parents = [torch.full_like(numbers, -1)]
    for level in range(depth):
        targets = drafter.draft_to_target[tokens]
        rotation = (cos[level : level + 1], sin[level : level + 1])
        hidden = drafter.expand(cache, level * width, targets, features, rotation, visible)  # [k, hidden]
        best = drafter.log_probs(hidden).topk(width)  # [k, k]
        cumulative = (best.values + scores[:, None]).flatten()  # [k * k]
        all_tokens.append(best.indices.flatten())
        all_scores.append(cumulative)
        all_parents.append(numbers[:, None].expand(-1, width).flatten())
        if level + 1 == depth:
            break
        frontier = cumulative.topk(width)
        chosen = frontier.indices  # [k], of the k * k
        parent_rows = chosen // width
        tokens, scores, features = all_tokens[-1][chosen], frontier.values, hidden[parent_rows]
        numbers = width + level * width**2 + chosen
        visible = torch.cat((visible[parent_rows], own), dim=1)
    depths = (torch.arange(width + depth * width**2, device=device) - width).div(width**2, rounding_mode="floor") + 2
    return _Candidates(
        tokens=torch.cat(all_tokens),
        log_probs=torch.cat(all_scores),
        parents=torch.cat(all_parents),
        depths=depths,
        root_entropy=-(after_root.exp() * after_root).sum(),
    )


def _select(drafter: Drafter, root: Tensor, candidates: _Candidates, count: int, deepest: int) -> DraftTree:
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
        visible=ancestors(parents, deepest),
        root_entropy=candidates.root_entropy,
    )
