"""Verification's last part: walk down the draft tree as far as the target's own tokens go.

The token that the target draws at a node is computed without looking at the node's children; the walk goes on while a
child with just that token exists. Whatever the tree, the committed tokens are therefore the ones that plain decoding
draws. For deterministic proposals (top-k drafts) this accepts a drafted token x with exactly the probability p(x) of
the usual rejection rule.

accepted tokens: drafted tokens on the path; bonus token: the one drawn at the path's last node, the next root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

Draw = Callable[[int, list[int]], int]
"""(node, drafted tokens on the path to it, root left out) -> the target's token after it."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcome of one step's verification."""

    nodes: list[int]
    """Nodes whose KV is kept: the root and the accepted ones, in path order."""
    tokens: list[int]
    """Newly known tokens: the accepted ones, then the bonus token."""

    @property
    def accepted(self) -> int:
        """Drafted tokens on the path."""
        return len(self.nodes) - 1


def walk(tokens: IntArray, parents: IntArray, draw: Draw) -> Walk:
    """Follow the target's tokens from the root.

    :param tokens: [nodes], the root first; `parents` [nodes], each before its children, the root's is itself.
    """
    nodes, path = [0], list[int]()
    while True:
        token = draw(nodes[-1], path)
        # A node's children have distinct tokens, so at most one matches. Numbers grow downwards, so the root,
        # its own parent, is never found again.
        matches = np.flatnonzero((parents == nodes[-1]) & (tokens == token))
        matches = matches[matches > nodes[-1]]
        path.append(token)
        if matches.size == 0:
            return Walk(nodes, path)
        nodes.append(int(matches[0]))
