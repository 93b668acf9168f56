"""The border between the engine and whoever chooses actions: one question per window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from respsd.control.action import Action

Vector = npt.NDArray[np.float32]


class Block(Protocol):
    """A stretch of engine steps in which all sequences that a rollout may compare have one arm; windows end with it."""

    @property
    def number(self) -> int | None:
        """Number of the block in this run of the daemon, from 0; None where nothing is compared in it."""
        ...

    @property
    def over(self) -> bool:
        """Whether the step that just ended was its last one; asked after every step."""
        ...


@dataclass(frozen=True, slots=True)
class EndedBlock:
    """What a row keeps of its block: the block itself holds on to the policies that were compared in it."""

    number: int | None
    over: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """One window's action and everything a learner must know about how it was drawn."""

    action: Action
    log_prob: float
    """Natural log of the exact probability with which the action was drawn; 0.0 for a deterministic choice."""
    arm: str
    """Which alias chose: baseline, champion, learner, candidate, last-good; `off` for plain decoding that a rollout
    compares with; `fixed` for the request's own action,
    `named` for a version that the request named by number."""
    policy_version: int | None = None
    action_index: int | None = None
    """The action's number in the table of the policy that chose it."""
    table_fingerprint: str | None = None
    """`ActionTable.fingerprint` of that table."""
    block: Block | None = None
    """Of a window that a rollout keeps in step with others."""


class Controller(Protocol):
    """Chooses a window's action from its observation. Immutable: a new version is a new controller."""

    @property
    def version(self) -> int | None:
        """The policy version that this controller runs; None for a request's own fixed action."""
        ...

    def choose(self, observation: Vector, uniform: float) -> Decision:
        """Choose for one window. `observation` is [schema.width]; `uniform` in [0, 1) is the only randomness."""
        ...
