"""What an update says about itself: stored with the version, recorded in the ledger, shown to people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, cast

Status = Literal["stored", "refused", "failed"]
Refusal = Literal[
    "no_learner",
    "other_observation_schema",
    "too_few_windows",
    "off_policy",
    "effective_sample_size",
    "loss_not_finite",
    "weights_not_finite",
    "kl",
]
"""Why an update must not take place, or its result must not be stored."""
Failure = Literal[
    "already_running",
    "cannot_start",
    "time_limit",
    "memory_limit",
    "cancelled",
    "crashed",
    "error",
    "no_report",
    "not_published",
]
"""Why an update came to no end of its own, or to none that serves."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One update, whatever became of it. Figures are None where the update did not get that far."""

    status: Status
    reason: str = ""
    """A Refusal or a Failure, where it was refused or failed."""
    detail: str = ""
    """The same in a sentence."""
    parent: int | None = None
    """The learner that it started from."""
    version: int | None = None
    """The version that it stored."""
    candidate: bool = False
    """Whether the held-out estimate is not below the champion's."""
    candidate_reason: str = ""
    windows_used: int = 0
    windows_held_out: int = 0
    windows_left_out: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    effective_share: float | None = None
    """Effective sample size over windows, of the learner against the policies that chose them."""
    kl: float | None = None
    clip_share: float | None = None
    entropy: float | None = None
    explained_variance: float | None = None
    value_loss: float | None = None
    policy_loss: float | None = None
    mean_reward: float | None = None
    baseline_source: str | None = None
    """What the baseline's speed was fitted to."""
    held_out: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)
    """Estimates (mean, low, high, effective_windows): `old` and `new` sampled at temperature 1, `new_greedy` and
    `champion` as they serve."""
    seconds: float = 0.0

    @classmethod
    def failed(cls, reason: Failure, detail: str) -> UpdateReport:
        """The report of an update that gave none itself."""
        return cls(status="failed", reason=reason, detail=detail)

    def to_dict(self) -> dict[str, object]:
        """JSON types only; a figure that is no number is null."""
        return cast("dict[str, object]", _without_nan(asdict(self)))

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> UpdateReport:
        """Read `to_dict`'s form; raises TypeError where a key is not known."""
        return cls(**cast("dict[str, object]", dict(stored)))  # type: ignore[arg-type]


def _without_nan(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class UpdateRefused(Exception):
    """An update must not take place, or its result must not be stored."""

    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.report: UpdateReport | None = None
        """What was known when it was refused."""
