"""Actions, the shapes a draft tree can take, and the table of those a policy may choose from.

total_tokens counts every token that the target verifies in a step, root included; depth is the number of
expansions after the first level, so a path has at most `depth + 1` drafted tokens; top_k is both the branching
factor and the beam width (EAGLE's own meanings, so that public settings mean the same here).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from respsd.errors import InvalidRequest


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """The shape of one draft tree; `OFF` (the root alone) is plain decoding."""

    total_tokens: int
    depth: int
    top_k: int

    @property
    def is_off(self) -> bool:
        """Whether the step drafts nothing."""
        return self.total_tokens == 1

    @property
    def pool(self) -> int:
        """Nodes that drafting can put forward, root included: `1 + top_k + depth * top_k**2`."""
        return 1 if self.is_off else 1 + self.top_k + self.depth * self.top_k**2

    def __str__(self) -> str:
        return "off" if self.is_off else f"{self.total_tokens},{self.depth},{self.top_k}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read `off` or `TT,d,k`; raise InvalidRequest on anything else."""
        if text.strip().lower() == "off":
            return OFF
        parts = text.split(",")
        if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            raise InvalidRequest("action", text, "write 'off' or three integers total_tokens,depth,top_k")
        return cls(*(int(part) for part in parts)).validated()

    def validated(self) -> Action:
        """Return self, or raise InvalidRequest where no tree has this shape."""
        if self == OFF:
            return self
        if self.total_tokens < 2:
            raise InvalidRequest("action.total_tokens", self.total_tokens, "it must be at least 2, or use 'off'")
        if self.depth < 0:
            raise InvalidRequest("action.depth", self.depth, "it must be at least 0")
        if self.top_k < 1:
            raise InvalidRequest("action.top_k", self.top_k, "it must be at least 1")
        return self


OFF = Action(total_tokens=1, depth=0, top_k=0)
EAGLE3 = Action(total_tokens=60, depth=7, top_k=10)
"""EAGLE-3's published default."""


@dataclass(frozen=True)
class ActionTable:
    """The legal actions in index order; a policy's output i is `actions[i]`."""

    actions: tuple[Action, ...]

    def __post_init__(self) -> None:
        if not self.actions:
            raise InvalidRequest("action_table", self.actions, "it must hold at least one action")
        if len(set(self.actions)) != len(self.actions):
            raise InvalidRequest("action_table", len(self.actions), "no action may stand in it twice")
        for action in self.actions:
            action.validated()

    @classmethod
    def grid(
        cls, total_tokens: Sequence[int], depths: Sequence[int], top_ks: Sequence[int], *, with_off: bool = False
    ) -> ActionTable:
        """Every combination with `total_tokens <= top_k**(depth-1)`, total_tokens slowest, top_k fastest.

        The rule is the paper's (Re-SpS appendix A). `off`, where asked for, comes first.
        """
        legal = (
            Action(tokens, depth, top_k)
            for tokens in total_tokens
            for depth in depths
            for top_k in top_ks
            if tokens <= top_k ** (depth - 1)
        )
        return cls(((OFF,) if with_off else ()) + tuple(legal))

    @cached_property
    def largest(self) -> Action:
        """An action at least as large as each in the table in every knob: what memory is reserved for."""
        return Action(
            max(a.total_tokens for a in self.actions),
            max(a.depth for a in self.actions),
            max(a.top_k for a in self.actions),
        )

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the table, so that rows and policies can say which table they mean."""
        text = ";".join(map(str, self.actions))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def index(self, action: Action) -> int:
        """The action's number; raises ValueError where the table does not have it."""
        return self.actions.index(action)

    def __len__(self) -> int:
        return len(self.actions)

    def __iter__(self) -> Iterator[Action]:
        return iter(self.actions)

    def __getitem__(self, index: int) -> Action:
        return self.actions[index]


def paper_table() -> ActionTable:
    """The 177 actions of Re-SpS (arXiv 2601.12212, appendix A)."""
    return ActionTable.grid((32, 48, 64, 80, 96, 128), (3, 4, 5, 6, 7, 8), (8, 12, 16, 20, 32))
