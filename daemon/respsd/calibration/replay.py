"""What every smaller tree would have cost and committed, from one wide tree at each place of an answer.

The tree of an action (total_tokens, depth, top_k) is the best total_tokens - 1 nodes that a beam search of width top_k
and `depth` expansions puts forward. A node's log-probability depends on nothing but its path, so the wide tree at a
place holds the log-probabilities of the narrower searches, too, and they can be run again on paper: `Place` says from
which total_tokens on a tree holds the target's own next token, the one after it, and so on. Walking an answer step by
step with these numbers gives exactly the steps that the engine would have made.

It is exact but for one thing: a node that a narrower search would expand and the wide one did not counts as having no
children. That is rare: such a node is among the best of few, yet not among the best of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from respsd.control.cost_model import Acceptance, Grid, Growth

IntArray = npt.NDArray[np.int64]

IntArray16 = npt.NDArray[np.int16]
FloatArray = npt.NDArray[np.float64]
NEVER = 32_767
"""In place of a total_tokens: no tree of that depth and top_k holds the token."""


@dataclass(frozen=True, slots=True)
class WideTree:
    """All candidates at one place; `respsd.engine.tree.Candidates` as arrays."""

    top_k: int
    depth: int
    tokens: IntArray  # [pool], target ids
    log_probs: FloatArray  # [pool], cumulative
    parents: IntArray  # [pool], candidate numbers; -1 for the root


@dataclass(frozen=True, slots=True)
class Place:
    """What narrower searches make of one place."""

    smallest_totals: IntArray16  # [top_ks, depths from 0, i]
    """The smallest total_tokens whose tree holds the target's token number i, and those before it."""
    expanded: IntArray16  # [top_ks, levels, total_tokens]
    """Frontier nodes that drafting expands at each level: those that can have descendants in the tree."""


def replay(tree: WideTree, truth: Sequence[int], top_ks: Sequence[int], total_tokens: Sequence[int]) -> Place:
    """Run narrower searches on paper.

    :param truth: the target's own tokens from this place on
    :param top_ks: at most the tree's
    """
    width, levels = tree.top_k, tree.depth + 1
    row_of = np.full(len(tree.parents), -1)  # candidate number -> its row among the expanded nodes of its level
    expanded = tree.parents[width:].reshape(tree.depth, width, width)[:, :, 0]  # [depth, width]
    row_of[expanded.ravel()] = np.tile(np.arange(width), tree.depth)
    totals = np.full((len(top_ks), levels, levels), NEVER, np.int16)
    rows = np.zeros((len(top_ks), tree.depth, len(total_tokens)), np.int16)
    for which, top_k in enumerate(top_ks):
        pool, path = _narrow_search(tree, row_of, truth, top_k)
        scores = tree.log_probs[path]  # of the path's nodes, falling
        better = np.array([(tree.log_probs[level][:, None] > scores).sum(axis=0) for level in pool])  # [level, i]
        rank = better.cumsum(axis=0)  # among the nodes of a tree that ends with that level
        for depth in range(levels):
            held = min(depth + 1, len(path))
            totals[which, depth, :held] = rank[depth, :held] + 2  # the node itself and the root
        rows[which] = _expansions([tree.log_probs[level] for level in pool], top_k, total_tokens)
    return Place(totals, rows)


def _expansions(pool: Sequence[FloatArray], top_k: int, total_tokens: Sequence[int]) -> IntArray:
    """[levels, total_tokens] frontier nodes above the worst node that a tree would keep of those put forward so far."""
    best = np.empty(0)  # falling
    rows = np.zeros((len(pool) - 1, len(total_tokens)), np.int64)
    for level, scores in enumerate(pool[:-1]):
        frontier = np.sort(scores)[::-1][:top_k]
        best = np.sort(np.concatenate((best, scores)))[::-1]
        for column, total in enumerate(total_tokens):
            worst = best[total - 2] if len(best) >= total - 1 else -np.inf
            rows[level, column] = int((frontier > worst).sum())
    return rows


def _narrow_search(
    tree: WideTree, row_of: IntArray, truth: Sequence[int], top_k: int
) -> tuple[list[IntArray], list[int]]:
    """Candidate numbers of each level of the search of width `top_k`, and those of the target's tokens among them."""
    width = tree.top_k
    ranks = np.arange(top_k)
    frontier = ranks
    pool, path = [ranks], list[int]()
    _follow(tree, truth, ranks, path)
    for level in range(tree.depth):
        rows = row_of[frontier]
        parents = frontier[rows >= 0]
        first_child = width + level * width**2 + rows[rows >= 0] * width
        children = first_child[:, None] + ranks  # [parents, top_k]
        if len(path) == level + 1:
            _follow(tree, truth, children[parents == path[-1]].ravel(), path)
        candidates = children.ravel()
        pool.append(candidates)
        best = np.argsort(-tree.log_probs[candidates], kind="stable")[:top_k]
        frontier = candidates[best]
    return pool, path


def _follow(tree: WideTree, truth: Sequence[int], children: IntArray, path: list[int]) -> None:
    """Add the child that the target's next token is, if there is one."""
    if len(path) < len(truth):
        path += children[tree.tokens[children] == truth[len(path)]][:1].tolist()


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """Consecutive places of one answer."""

    smallest_totals: IntArray16  # [places, top_ks, depths, i]
    expanded: IntArray16  # [places, top_ks, levels, total_tokens]

    @classmethod
    def of(cls, places: Sequence[Place]) -> AnswerRecord:
        """Put places together."""
        return cls(
            np.stack([place.smallest_totals for place in places]), np.stack([place.expanded for place in places])
        )


@dataclass(frozen=True, slots=True)
class Axes:
    """What places were recorded for."""

    top_ks: tuple[int, ...]
    depth: int
    total_tokens: tuple[int, ...]

    def grid(self, values: FloatArray) -> Grid:
        """:param values: [top_ks, depths from 0, total_tokens]."""
        nested = tuple(tuple(tuple(line) for line in plane) for plane in values.tolist())
        return Grid(self.top_ks, tuple(range(self.depth + 1)), self.total_tokens, nested)


def acceptance(records: Sequence[AnswerRecord], axes: Axes) -> Acceptance:
    """Committed tokens a step for every combination, over all answers together."""
    tau = np.ones((len(axes.top_ks), axes.depth + 1, len(axes.total_tokens)))
    for which in range(len(axes.top_ks)):
        for depth in range(axes.depth + 1):
            for column, total in enumerate(axes.total_tokens):
                tau[which, depth, column] = _tau([each.smallest_totals[:, which, depth] <= total for each in records])
    return Acceptance(axes.grid(tau), sum(len(each.smallest_totals) for each in records))


def growth(records: Sequence[AnswerRecord], axes: Axes) -> Growth:
    """Mean shares of levels and rows that are really drafted."""
    expanded = np.concatenate([each.expanded for each in records])  # [places, top_ks, levels, total_tokens]
    shape = (len(axes.top_ks), axes.depth + 1, len(axes.total_tokens))
    levels, rows = np.ones(shape), np.ones(shape)
    for depth in range(1, axes.depth + 1):
        done = expanded[:, :, :depth]
        levels[:, depth] = (done > 0).mean(axis=(0, 2))
        rows[:, depth] = done.mean(axis=(0, 2)) / np.array(axes.top_ks)[:, None]
    return Growth(axes.grid(levels), axes.grid(rows))


def _tau(held: Sequence[npt.NDArray[np.bool_]]) -> float:
    """:param held: for each answer [places, i]: does the tree hold the target's token i, and those before it."""
    steps = committed = 0
    for answer in held:
        advances = answer.sum(axis=1) + 1  # the accepted tokens and the bonus token
        place = 0
        while place < len(advances):
            steps += 1
            committed += int(advances[place])
            place += int(advances[place])
    return committed / max(1, steps)
