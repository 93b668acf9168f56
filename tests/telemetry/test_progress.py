"""The estimate of time left, and log lines where no one watches."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from respsd.telemetry.progress import ProgressReport

SECOND = 1_000_000_000


class _Clock:
    def __init__(self) -> None:
        self.now = 5 * SECOND

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now


def test_time_left_goes_by_this_runs_own_speed() -> None:
    clock = _Clock()
    progress = ProgressReport("steps", 100, clock, done=60)
    assert progress.seconds_left() is None
    clock.now += 20 * SECOND
    progress.advance(10)  # 2 seconds a step, 30 left
    assert progress.seconds_left() == 60
    progress.advance(30)
    assert progress.seconds_left() == 0


@pytest.mark.parametrize(("seconds", "lines"), [(30, 0), (61, 1)])
def test_a_log_line_a_minute_without_a_terminal(seconds: int, lines: int) -> None:
    clock = _Clock()
    with capture_logs() as logs, ProgressReport("steps", 100, clock) as progress:
        clock.now += seconds * SECOND
        progress.advance(10, "loss 1.0")
        progress.advance(10, "loss 0.9")
    assert len(logs) == lines
    if lines:
        assert (logs[0]["event"], logs[0]["done"], logs[0]["total"], logs[0]["detail"]) == (
            "steps",
            10,
            100,
            "loss 1.0",
        )
