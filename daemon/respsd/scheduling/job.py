"""What a job is, and how a run of it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["done", "skipped", "failed"]
"""`skipped`: there was nothing to do, or it may not be done now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended that did not fail."""

    verdict: Literal["done", "skipped"]
    detail: str = ""
    """For people: what was done, or why not."""
    next_in_seconds: float | None = None
    """When to run next; None: after the job's interval."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do again and again."""

    name: str
    run: Callable[[threading.Event], Outcome]
    """Does it, and returns soon after the event is set. An exception is a failure, a RespsdError a foreseen one."""
    interval_seconds: float
    first_seconds: float | None = None
    """From the start to the first run; None: the interval."""
    retry_seconds: float | None = None
    """From a failure to the next run, doubled with each further failure in a row; None: the interval."""
    retry_seconds_max: float = 24 * 3600.0

    def delay_after(self, failures: int) -> float:
        """Seconds to the next run after so many failures in a row, at least one."""
        first = self.interval_seconds if self.retry_seconds is None else self.retry_seconds
        doublings = min(failures - 1, 64)  # a float overflows later
        return min(first * 2.0**doublings, max(self.retry_seconds_max, first))


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment. Times are UTC, nanoseconds since the epoch; None where there was none."""

    name: str
    running_since_ns: int | None = None
    next_run_ns: int | None = None
    last_finished_ns: int | None = None
    last_done_ns: int | None = None
    last_verdict: Verdict | None = None
    last_detail: str = ""
    failures_in_a_row: int = 0
    runs: int = 0
    """Runs that ended."""
