"""Hard guards: faults that no statistics are needed for. They act on the engine's thread, within the step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Guard = Literal["exception", "illegal-action", "step-time", "policy-time"]
"""`exception` covers NaN: a policy whose output is not finite raises."""

_REFERENCE_STEPS = 64
_FEWEST_REFERENCE_STEPS = 8


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """When the guards trip."""

    step_time_factor: float = 3.0
    """A step of the subject may take this many times the control's median with about as many sequences."""
    step_time_steps: int = 8
    """So many of the subject's steps in a row, of one bucket of batch sizes, must be over it: one slow step is the
    machine's, not the policy's."""
    policy_seconds: float = 0.005
    """A choice may take this long."""
    policy_choices: int = 3
    """So many choices in a row must be over it."""


@dataclass(slots=True)
class _Bucket:
    """Steps of about as many sequences."""

    reference: deque[int] = field(default_factory=lambda: deque(maxlen=_REFERENCE_STEPS))
    """What the control's last ones took."""
    slow: int = 0
    """The subject's last ones that were too slow, in a row."""


class StepTimeGuard:
    """Watches the subject's steps against the control's with about as many sequences.

    A step of eight sequences takes longer than one of a single sequence, whoever chose its trees. So each bucket of
    batch sizes (1, 2, 3 and 4, 5 to 8, ...) has references and a row of slow steps of its own, and nothing is judged in
    a bucket where the control has hardly run yet. A control that decodes plainly is no reference: a step with a large
    tree takes many times as long and may well earn it, which the judge sees in tokens per second.
    """

    def __init__(self, limits: GuardLimits) -> None:
        self._limits = limits
        self._buckets: dict[int, _Bucket] = {}

    def control_step(self, ns: int, batch_size: int) -> None:
        """A step of the control: a reference."""
        self._bucket(batch_size).reference.append(ns)

    def subject_step(self, ns: int, batch_size: int) -> str | None:
        """A step of the subject; what is wrong once too many in a row of its bucket were too slow."""
        bucket = self._bucket(batch_size)
        if len(bucket.reference) < _FEWEST_REFERENCE_STEPS:
            return None
        usual = median(bucket.reference)
        bucket.slow = bucket.slow + 1 if ns > self._limits.step_time_factor * usual else 0
        if bucket.slow < self._limits.step_time_steps:
            return None
        over = f"over {self._limits.step_time_factor:g} times the control's {usual / 1e6:.1f} ms"
        return f"{bucket.slow} steps in a row took {over}, the last {ns / usual:.1f} times ({batch_size} sequences)"

    def _bucket(self, batch_size: int) -> _Bucket:
        return self._buckets.setdefault((batch_size - 1).bit_length(), _Bucket())


class PolicyTimeGuard:
    """Watches how long a policy takes to choose."""

    def __init__(self, limits: GuardLimits) -> None:
        self._limits = limits
        self._slow = 0

    def chose(self, seconds: float) -> str | None:
        """A choice; what is wrong once too many in a row were too slow."""
        self._slow = self._slow + 1 if seconds > self._limits.policy_seconds else 0
        if self._slow < self._limits.policy_choices:
            return None
        limit = self._limits.policy_seconds * 1e3
        return f"{self._slow} choices in a row took over {limit:g} ms, the last {seconds * 1e3:.1f} ms"
