"""What an update says about itself: stored with the version, recorded in the ledger, shown to people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, cast

Status = Literal["stored", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """One update, whatever became of it. Figures are None where the update did not get that far."""

    status: Status
    reason: str = ""
    """Why it was refused or failed, one word or two (`too_few_windows`, `time_limit`)."""
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

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.report: UpdateReport | None = None
        """What was known when it was refused."""
