"""The trainer in a process of its own, as the scheduler runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from respsd.errors import UpdateFailed
from respsd.scheduling.update_job import UpdateSummary
from respsd.tuning.report import UpdateReport

_LOOK_SECONDS = 0.2


class Trainer(Protocol):
    """Runs one update in a process of its own; `respsd.tuning.runner.UpdateRunner`."""

    def run(self) -> UpdateReport:
        """Run it to its end, publish and record it."""
        ...

    def cancel(self) -> None:
        """Kill a running update and let no other start."""
        ...


class SpawnedUpdate:
    """An `UpdateRunner` of the scheduler over a trainer."""

    def __init__(
        self,
        trainer: Trainer,
        new_windows: Callable[[], int],
        observe: Callable[[UpdateReport], None] = lambda _report: None,
    ) -> None:
        """Take the trainer.

        :param new_windows: counts explorer windows that no update has read
        :param observe: told of every update that ended
        """
        self._trainer = trainer
        self._new_windows = new_windows
        self._observe = observe

    def new_windows(self) -> int:
        """See `UpdateRunner`."""
        return self._new_windows()

    def run(self, stop: threading.Event) -> UpdateSummary:
        """See `UpdateRunner`; raises UpdateFailed."""
        done = threading.Event()
        watch = threading.Thread(target=self._cancel_when, args=(stop, done), name="update-watch", daemon=True)
        watch.start()
        try:
            report = self._trainer.run()
        finally:
            done.set()
            watch.join()
        self._observe(report)
        if report.status == "failed":
            raise UpdateFailed(f"{report.reason}: {report.detail}" if report.detail else report.reason)
        return UpdateSummary(report.version, _text(report))

    def _cancel_when(self, stop: threading.Event, done: threading.Event) -> None:
        while not done.wait(_LOOK_SECONDS):
            if stop.is_set():
                self._trainer.cancel()
                return


def _text(report: UpdateReport) -> str:
    if report.version is None:
        return f"refused ({report.reason}): {report.detail}"
    role = "learner and a possible candidate" if report.candidate else "learner"
    return f"version {report.version} is the {role}, trained on {report.windows_used} windows"
