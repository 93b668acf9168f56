"""Runs updates in a process of their own, so that a crash, a hang or a lack of memory there leaves the daemon alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import structlog

from respsd.clock import Clock
from respsd.paths import POLICIES, TRANSITIONS
from respsd.settings_learning import LearningSettings
from respsd.tuning import ledger
from respsd.tuning.baseline_speed import SpeedPoint
from respsd.tuning.job import UpdateOrder
from respsd.tuning.ledger import UpdateLedger
from respsd.tuning.report import Failure, UpdateReport

Publish = Callable[[int, UpdateReport], None]
"""Takes a new learner version into service, and as candidate where it may be one and no other is being evaluated."""

_LOOK_SECONDS = 0.1
_DETAIL_CHARACTERS = 2000
"""Of what the process wrote to standard error before it died."""
JOB = (sys.executable, "-m", "respsd.tuning.job")

log = structlog.get_logger(__name__)


class UpdateRunner:
    """Runs one update at a time. `run` blocks; `cancel` may be called from any thread."""

    def __init__(
        self,
        state_dir: Path,
        settings: LearningSettings,
        publish: Publish,
        *,
        clock: Clock,
        seed: Callable[[], int],
        code_version: str,
        calibration: Callable[[], Sequence[SpeedPoint]] = tuple,
        command: Sequence[str] = JOB,
    ) -> None:
        """Set up; nothing starts yet.

        :param publish: called in `run`'s thread with the version that an update stored
        :param seed: draws an update's seed
        :param calibration: the baseline's calibrated speeds as they are when an update starts
        :param command: runs the job
        """
        self._state_dir = state_dir
        self._settings = settings
        self._publish = publish
        self._ledger = UpdateLedger(state_dir / ledger.FILE, clock)
        self._seed = seed
        self._code_version = code_version
        self._calibration = calibration
        self._command = tuple(command)
        self._running = threading.Lock()
        self._cancelled = threading.Event()

    def run(self) -> UpdateReport:
        """Run an update to its end, publish what it stored, and record it; never raises for what the update did.

        Returns a `failed` report where another update of this runner is running.
        """
        if not self._running.acquire(blocking=False):
            return UpdateReport.failed("already_running", "an update is running")
        try:
            started = time.monotonic()
            report = self._run()
            if report.version is not None:
                report = self._published(report.version, report)
            report = replace(report, seconds=time.monotonic() - started)
            self._record(report)
            return report
        finally:
            self._running.release()

    def cancel(self) -> None:
        """Kill a running update and let no other start; for the daemon's end."""
        self._cancelled.set()

    def _run(self) -> UpdateReport:
        order = UpdateOrder(
            store=self._state_dir / POLICIES,
            log=self._state_dir / TRANSITIONS,
            settings=self._settings,
            seed=self._seed(),
            code_version=self._code_version,
            calibration=tuple(self._calibration()),
        )
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=errors,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,  # a terminal's interrupt is for the daemon, which then cancels
                )
            except OSError as fault:
                return UpdateReport.failed("cannot_start", str(fault))
            try:
                self._give(process, order)
                killed = self._watch(process)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            return killed or _outcome(process.returncode, output, errors)

    def _give(self, process: subprocess.Popen[bytes], order: UpdateOrder) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(order.to_json().encode() + b"\n")
            process.stdin.close()
        except OSError:  # it died before it could read; its exit says the rest
            pass

    def _watch(self, process: subprocess.Popen[bytes]) -> UpdateReport | None:
        """Wait for the process; why it has to be killed, where it has to be."""
        deadline = time.monotonic() + self._settings.time_limit_seconds
        limit = self._settings.memory_limit_mib << 20
        while process.poll() is None:
            if time.monotonic() > deadline:
                return UpdateReport.failed(
                    "time_limit", f"it ran for more than {self._settings.time_limit_seconds:g} s"
                )
            if _resident_bytes(process.pid) > limit:
                return UpdateReport.failed("memory_limit", f"it took more than {self._settings.memory_limit_mib} MiB")
            if self._cancelled.wait(_LOOK_SECONDS):
                return UpdateReport.failed("cancelled", "the daemon is stopping")
        return None

    def _published(self, version: int, report: UpdateReport) -> UpdateReport:
        try:
            self._publish(version, report)
        except Exception as fault:  # noqa: BLE001 - learning must not take the daemon's scheduler down
            log.error("learner_not_published", version=version, fault=str(fault))
            reason: Failure = "not_published"
            return replace(report, status="failed", reason=reason, detail=str(fault))
        return report

    def _record(self, report: UpdateReport) -> None:
        level = log.warning if report.status == "failed" else log.info
        level(
            "learner_update",
            status=report.status,
            reason=report.reason,
            detail=report.detail,
            version=report.version,
            candidate=report.candidate,
            windows_used=report.windows_used,
            seconds=round(report.seconds, 3),
        )
        try:
            self._ledger.append(report)
        except Exception as fault:  # noqa: BLE001 - a full disk must not undo an update
            log.error("learner_update_not_recorded", fault=str(fault))


def _outcome(returncode: int, output: IO[bytes], errors: IO[bytes]) -> UpdateReport:
    """The process's own report, or what can be said of one that gave none."""
    output.seek(0)
    lines = output.read().splitlines()
    if returncode == 0 and lines:
        try:
            return UpdateReport.from_dict(json.loads(lines[-1]))
        except (ValueError, TypeError) as fault:
            return UpdateReport.failed("no_report", f"its report cannot be read: {fault}")
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]
    how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
    return UpdateReport.failed("crashed", f"it ended by {how}" + (f": {said}" if said else ""))


def _resident_bytes(pid: int) -> int:
    """Memory in use by a process; 0 where it has gone, or the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
