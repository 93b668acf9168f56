"""Progress of a long command: a bar where a person watches, a log line now and then where none does."""

from __future__ import annotations

from types import TracebackType

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from respsd.clock import Clock

log = structlog.get_logger(__name__)

_LOG_INTERVAL_NS = 60_000_000_000
_NS_PER_SECOND = 1e9


class ProgressReport:
    """Counts steps of one task towards a total; on standard error."""

    def __init__(self, task: str, total: int, clock: Clock, *, done: int = 0) -> None:
        """:param done: steps that an earlier run did; the estimate of time left counts only this run's."""
        console = Console(stderr=True)
        self._task, self._total, self._clock = task, total, clock
        self._done, self._done_before = done, done
        self._started_ns = self._logged_ns = clock.monotonic_ns()
        self._bar: Progress | None = None
        self._bar_task = TaskID(0)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[detail]}"),
                console=console,
            )
            self._bar_task = self._bar.add_task(task, total=total, completed=done, detail="")

    def advance(self, steps: int, detail: str = "") -> None:
        """Note steps done; `detail` stands beside the bar."""
        self._done += steps
        if self._bar is not None:
            self._bar.update(self._bar_task, completed=self._done, detail=detail)
            return
        now = self._clock.monotonic_ns()
        if now - self._logged_ns >= _LOG_INTERVAL_NS or self._done >= self._total:
            self._logged_ns = now
            log.info(self._task, done=self._done, total=self._total, seconds_left=self.seconds_left(), detail=detail)

    def seconds_left(self) -> int | None:
        """Estimate from this run's own speed; None before its first step."""
        done_now = self._done - self._done_before
        if done_now <= 0:
            return None
        elapsed = (self._clock.monotonic_ns() - self._started_ns) / _NS_PER_SECOND
        return round(elapsed / done_now * max(0, self._total - self._done))

    def __enter__(self) -> ProgressReport:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
