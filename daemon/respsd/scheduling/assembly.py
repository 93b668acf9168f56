"""Puts a daemon's jobs together from its settings."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from policy_store import PolicyStore, StoreError
from respsd.clock import Clock
from respsd.errors import ChangeRefused, LearningPaused, StorageError
from respsd.experience.recorder import Recorder
from respsd.experience.retention import Limits, TakeTurn
from respsd.experience.snapshot import age_seconds
from respsd.paths import BACKUPS, POLICIES, REGISTRY, TRANSITIONS
from respsd.scheduling.job import Job, JobStatus, Outcome
from respsd.scheduling.job_scheduler import JobScheduler
from respsd.scheduling.learning_gate import LearningGate
from respsd.scheduling.retention_limits import limits_now, seen_by_learner
from respsd.scheduling.update_job import UpdateJob, UpdateRunner
from respsd.scheduling.upkeep import Backups, Checks, Retention, Versions
from respsd.settings import Settings
from respsd.telemetry.scheduling_metrics import SchedulingMetrics

T = TypeVar("T")
UPDATE, RETENTION, VERSIONS, BACKUP, CHECK = "update", "retention", "versions", "backup", "check"

log = structlog.get_logger(__name__)

_FIRST_SECONDS = 60.0
"""Upkeep leaves the start to the models."""
_FIRST_CHECK_SECONDS = 300.0
_RETRY_SECONDS = 300.0
_TURN_SECONDS = 60.0
"""How long retention waits for the recorder to come to it."""
_HOUR = 3600.0
_NO_TRAINER = "this daemon has no trainer"


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """What is scheduled and whether the daemon learns."""

    jobs: tuple[JobStatus, ...]
    learning_paused: str | None
    """Why no policy is trained now; None where one may be."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the jobs work on."""

    store: PolicyStore | None
    recorder: Recorder | None
    """None where nothing is logged."""
    registry: CollectorRegistry
    clock: Clock
    runner: UpdateRunner | None = None
    """None where this daemon trains nothing."""


class DaemonSchedule:
    """A daemon's jobs. Every method may be called from any thread."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        """Put the jobs together; `start` begins."""
        self._settings = settings
        self._parts = parts
        self._metrics = SchedulingMetrics(parts.registry)
        self._transitions = settings.state_dir / TRANSITIONS
        self._registry_file = settings.state_dir / POLICIES / REGISTRY
        recorder = parts.recorder
        self.gate = LearningGate(
            parts.store, None if recorder is None else recorder.status, enabled=settings.learning.enabled
        )
        self._update = None if parts.runner is None else self._update_job(parts.runner)
        self._jobs = JobScheduler(
            [*self._upkeep_jobs(), *([] if self._update is None else [self._update_schedule(self._update)])],
            parts.clock,
            misfire_grace_seconds=settings.schedule.misfire_grace_seconds,
            observe=self._metrics.job_ran,
        )
        self._metrics.watch_learning(self.paused)
        if recorder is not None:
            self._metrics.watch_recorder(recorder.status)

    def start(self) -> None:
        """Open the experience log, and run the jobs from now on."""
        if self._parts.recorder is not None:
            self._parts.recorder.prepare()
        self._jobs.start()

    def stop(self, timeout: float) -> bool:
        """Ask running jobs to end; False where one still goes on after `timeout` seconds."""
        return self._jobs.stop(timeout)

    def status(self) -> ScheduleStatus:
        """Every job, and whether the daemon learns."""
        return ScheduleStatus(tuple(self._jobs.status().values()), self.paused())

    def paused(self) -> str | None:
        """Why no policy is trained now; None where one may be."""
        return self.gate.paused() if self._update is not None else _NO_TRAINER

    def log_set_aside(self) -> Path | None:
        """Where a damaged experience log went in this run of the daemon."""
        recorder = self._parts.recorder
        return None if recorder is None else recorder.status().moved_aside

    def train_now(self, *, actor: str, reason: str, dry_run: bool) -> str:
        """Start an update without waiting for as many windows as one does by itself; says so in a sentence.

        Raises LearningPaused, ChangeRefused where there is not even a minibatch, or StorageError.
        """
        if self._update is None:
            raise LearningPaused(_NO_TRAINER)
        if (blocked := self.gate.blocked()) is not None:
            raise LearningPaused(blocked)
        windows, least = self._update.new_windows(), self._settings.learning.batch_size
        if windows < least:
            raise ChangeRefused(
                f"there are {windows} new explorer windows to learn from, and an update takes {least} at least"
                " (learning.batch_size); exploration.share says how many requests explore"
            )
        if dry_run:
            return f"an update on {windows} new windows would start"
        self._update.ask()
        log.info("update_asked_for", actor=actor, reason=reason)
        self._jobs.run_now(UPDATE)
        return f"an update on {windows} new windows starts"

    def run_now(self, job: str) -> Future[Outcome]:
        """Have a job run as soon as it can."""
        return self._jobs.run_now(job)

    def _update_job(self, runner: UpdateRunner) -> UpdateJob:
        return UpdateJob(
            runner,
            self.gate,
            min_new_windows=self._settings.learning.min_new_windows,
            recheck_seconds=min(self._settings.schedule.recheck_seconds, self._settings.learning.interval_seconds),
            failed=lambda: self._jobs.run_now(CHECK),
        )

    def _update_schedule(self, update: UpdateJob) -> Job:
        interval = self._settings.learning.interval_seconds
        return Job(UPDATE, update, interval, retry_seconds=interval)

    def _upkeep_jobs(self) -> list[Job]:
        settings, parts = self._settings, self._parts
        jobs = [Job(CHECK, self._checks(), settings.schedule.check_hours * _HOUR, _FIRST_CHECK_SECONDS, _RETRY_SECONDS)]
        if parts.recorder is not None:
            retention = Retention(
                self._transitions,
                self._limits,
                settings.retention.chunk_rows,
                _turn_of(parts.recorder),
                self._metrics,
                parts.recorder.report_damage,
            )
            jobs.append(Job(RETENTION, retention, settings.retention.interval_seconds, _FIRST_SECONDS))
        if parts.store is not None:
            versions = Versions(parts.store, settings.schedule.keep_versions)
            jobs.append(Job(VERSIONS, versions, settings.retention.interval_seconds, _FIRST_SECONDS))
        if settings.schedule.backup_hours is not None:
            interval = settings.schedule.backup_hours * _HOUR
            jobs.append(Job(BACKUP, self._backups(), interval, self._first_backup(interval), _RETRY_SECONDS, interval))
        return jobs

    def _checks(self) -> Checks:
        recorder = self._parts.recorder
        return Checks(
            self._transitions,
            self._registry_file,
            log_damaged=(lambda _fault, _file: None) if recorder is None else recorder.report_damage,
            registry_checked=self.gate.registry_checked,
        )

    def _backups(self) -> Backups:
        folder = self._settings.state_dir / BACKUPS
        sources = (self._registry_file, self._transitions)
        return Backups(sources, folder, self._settings.schedule.backup_keep, self._parts.clock.time_ns)

    def _first_backup(self, interval: float) -> float:
        """A daemon that is started every day makes its backup every day, also where the clock was set back."""
        age = age_seconds(self._registry_file, self._settings.state_dir / BACKUPS, self._parts.clock.time_ns)
        return _FIRST_SECONDS if age is None else max(_FIRST_SECONDS, interval - age)

    def _limits(self) -> Limits:
        store = self._parts.store
        try:
            seen = None if store is None or self._update is None else seen_by_learner(store)
        except StoreError as fault:
            raise StorageError(str(fault)) from fault
        return limits_now(self._settings, seen, self._parts.clock.time_ns())


def _turn_of(recorder: Recorder) -> TakeTurn:
    def take_turn(write: Callable[[Engine], T]) -> T:
        return recorder.between_batches(write, _TURN_SECONDS)

    return take_turn
