"""A rollout at one moment, for health, metrics and commands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from respsd.rollout.contest import Kind
from respsd.rollout.round import SHADOW, Round

SLOWER = "slower"
"""Why a version was rolled back that no guard stopped: it lost its comparison."""


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """One comparison."""

    kind: Kind
    subject_version: int | None
    control_version: int | None
    stage: int
    """0 is shadow."""
    share: float
    """Of windows that the challenger serves now."""
    pairs: int
    mean: float
    """Log ratio of speeds, subject over control; the bounds likewise."""
    lower: float
    upper: float
    alpha: float

    @classmethod
    def of(cls, round_: Round, share: float) -> RoundStatus:
        """The status of a round."""
        lower, upper = round_.judge.bounds()
        return cls(
            kind=round_.contest.kind,
            subject_version=round_.contest.subject.version,
            control_version=round_.contest.control.version,
            stage=round_.stage,
            share=0.0 if round_.stage == SHADOW else share,
            pairs=round_.judge.pairs,
            mean=round_.judge.mean,
            lower=lower,
            upper=upper,
            alpha=round_.judge.settings.alpha,
        )

    def describe(self) -> str:
        """In words, speeds as ratios."""
        control = "plain decoding" if self.kind == "off" else _version(self.control_version)
        what = f"{self.kind}: version {_version(self.subject_version)} against {control}, "
        if self.stage == SHADOW and self.kind == "candidate":
            return f"{what}in the shadow"
        bounds = f"{math.exp(self.lower):.3f} to {math.exp(self.upper):.3f}"
        return f"{what}{self.share:.1%} of windows, {self.pairs} pairs, {math.exp(self.mean):.3f}x ({bounds})"


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """All of it."""

    rounds: tuple[RoundStatus, ...] = ()
    rollbacks: Mapping[str, int] = field(default_factory=dict)
    """Automatic ones of this run of the daemon, by reason: SLOWER or the guard that tripped."""
    promotions: int = 0
    cooldown_until_ns: int | None = None
    """UTC; None where none is on."""
    waiting: str | None = None
    """Why a candidate is not evaluated now."""
    speculation_off: bool = False
    """The champion is plain decoding."""

    @property
    def is_evaluating(self) -> bool:
        """Whether a candidate is being compared with the champion; one that waits is not."""
        return any(each.kind == "candidate" for each in self.rounds)

    def describe(self) -> list[str]:
        """A line for each comparison under way, and for what holds the next one back."""
        lines = [each.describe() for each in self.rounds]
        if self.waiting is not None:
            lines.append(f"the candidate waits: {self.waiting}")
        return lines


def _version(number: int | None) -> str:
    return "built-in" if number is None else str(number)
