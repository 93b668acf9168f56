"""Time, passed in wherever it is read so that tests can hold it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the daemon reads time from."""

    def monotonic_ns(self) -> int:
        """For intervals, nanoseconds."""
        ...

    def time_ns(self) -> int:
        """UTC, nanoseconds since the epoch."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_ns(self) -> int:
        """For intervals, nanoseconds."""
        return time.perf_counter_ns()

    def time_ns(self) -> int:
        """UTC, nanoseconds since the epoch."""
        return time.time_ns()
