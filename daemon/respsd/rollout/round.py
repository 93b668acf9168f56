"""A round: one comparison from its first window to its end, and everything that is known of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from respsd.rollout.contest import Contest
from respsd.rollout.judge import Judge, Verdict
from respsd.rollout.pairing import Measured, Observation

SHADOW = 0
"""The stage before the first of the ramp."""


@dataclass(slots=True)
class Workload:
    """What the round's evidence was gathered on."""

    pairs: int = 0
    subject: Measured = field(default_factory=Measured)
    control: Measured = field(default_factory=Measured)
    batch_size: float = 0.0
    """Mean over the pairs, as the context length."""
    context_length: float = 0.0

    def add(self, observation: Observation, batch_size: float, context_length: float) -> None:
        """Count an observation in."""
        self.pairs += 1
        self.subject += observation.subject
        self.control += observation.control
        self.batch_size += (batch_size - self.batch_size) / self.pairs
        self.context_length += (context_length - self.context_length) / self.pairs

    def figures(self) -> dict[str, float]:
        """The summary that goes into the audit log."""
        return {
            "batch_size": round(self.batch_size, 2),
            "context_length": round(self.context_length, 1),
            "subject_tokens": self.subject.tokens,
            "control_tokens": self.control.tokens,
            "subject_tokens_per_second": round(_speed(self.subject), 3),
            "control_tokens_per_second": round(_speed(self.control), 3),
        }


@dataclass(slots=True)
class Round:
    """One comparison under way."""

    contest: Contest
    judge: Judge
    started_at_ns: int
    stage: int
    """SHADOW, or the number of the ramp's stage from 1; a holdout has none and stays at 1."""
    id: int | None = None
    """Its row, once it has one."""
    stage_pairs: int = 0
    shadow_windows: int = 0
    shadow_agreed: int = 0
    shadow_seconds: float = 0.0
    workload: Workload = field(default_factory=Workload)

    @property
    def is_evaluation(self) -> bool:
        """Whether a candidate is at stake; otherwise the champion is."""
        return self.contest.kind == "candidate"

    def observe(self, observation: Observation, batch_size: float, context_length: float) -> Verdict:
        """Take an observation; what the evidence says now."""
        self.stage_pairs += 1
        self.workload.add(observation, batch_size, context_length)
        return self.judge.observe(observation.log_ratio)

    def figures(self) -> dict[str, object]:
        """What a decision rests on, for the audit log."""
        lower, upper = self.judge.bounds()
        settings = self.judge.settings
        return {
            "kind": self.contest.kind,
            "subject": self.contest.subject.version,
            "control": self.contest.control.version,
            "stage": self.stage,
            "pairs": self.judge.pairs,
            "mean": _share(self.judge.mean),
            "lower": _share(lower),
            "upper": _share(upper),
            "margin": settings.margin,
            "alpha": settings.alpha,
            "clip": settings.clip,
            "min_pairs": settings.min_pairs,
            "max_pairs": settings.max_pairs,
            "shadow_windows": self.shadow_windows,
            "shadow_agreed": self.shadow_agreed,
            "workload": self.workload.figures(),
        }


def _share(log_ratio: float) -> float:
    """How much faster the subject is, as a share: -0.05 is 5 % slower."""
    return round(math.expm1(log_ratio), 6)


def _speed(measured: Measured) -> float:
    return measured.tokens * 1e9 / measured.ns if measured.ns else 0.0
