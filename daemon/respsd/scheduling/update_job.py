"""The update of the learner as a job: once its time has come and there is enough to learn from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from respsd.errors import LearningPaused
from respsd.scheduling.job import Outcome
from respsd.scheduling.learning_gate import LearningGate


@dataclass(frozen=True, slots=True)
class UpdateSummary:
    """What became of an update that ran to its end."""

    version: int | None
    """The version that was stored and published; None where the update was refused."""
    detail: str
    """For people."""


class UpdateRunner(Protocol):
    """Trains the next learner from the experience log."""

    def new_windows(self) -> int:
        """Explorer windows in the log that no update has read. Raises StorageError where it cannot be read."""
        ...

    def run(self, stop: threading.Event) -> UpdateSummary:
        """Train, store and publish; give up soon after `stop` is set.

        Raises an exception where it crashed, took too long or could not be stored.
        """
        ...


class UpdateJob:
    """Decides, at each of its times, whether an update runs. Any thread may ask for one at once."""

    def __init__(
        self,
        runner: UpdateRunner,
        gate: LearningGate,
        *,
        min_new_windows: int,
        recheck_seconds: float,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        """Take the runner.

        :param recheck_seconds: how soon an update that had to wait looks again
        :param failed: told of each update that failed: the log may be damaged
        """
        self._runner = runner
        self._gate = gate
        self._min_new_windows = min_new_windows
        self._recheck_seconds = recheck_seconds
        self._failed = failed
        self._asked_for = threading.Event()
        self._refused_at = 0
        """New windows that there were when the last update was refused: with the same ones the next would be too."""

    def ask(self) -> None:
        """Have the next run train whatever is there; raises LearningPaused."""
        reason = self._gate.blocked()
        if reason is not None:
            raise LearningPaused(reason)
        self._asked_for.set()

    def new_windows(self) -> int:
        """Explorer windows that no update has read. Raises StorageError."""
        return self._runner.new_windows()

    def __call__(self, stop: threading.Event) -> Outcome:
        """The job's run."""
        was_asked_for = self._asked_for.is_set()
        self._asked_for.clear()
        reason = self._gate.blocked() if was_asked_for else self._gate.paused()
        if reason is not None:
            return self._wait(f"paused: {reason}")
        try:
            new = self._runner.new_windows()
            self._refused_at = self._refused_at if new >= self._refused_at else 0
            needed = self._refused_at + self._min_new_windows
            if new < needed and not was_asked_for:
                return self._wait(f"{new} of {needed} new windows")
            summary = self._runner.run(stop)
        except Exception:
            if not stop.is_set():
                self._failed()
            raise
        self._refused_at = new if summary.version is None else 0
        return Outcome("done", summary.detail)

    def _wait(self, why: str) -> Outcome:
        return Outcome("skipped", why, self._recheck_seconds)
