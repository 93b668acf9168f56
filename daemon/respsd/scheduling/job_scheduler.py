"""Runs jobs at their times: APScheduler's background scheduler with the job definitions in memory.

A job has one run at a time, on a daemon thread of its own, so that a run which hangs holds up neither the other jobs
nor the process's end. A time that comes while the job still runs is made up for when the run ends; a run that is late,
after a suspend for instance, still happens; several that are due together are one. A run that fails is logged and
counted, and tried again later and later.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobEvent,
)
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.job import Job as ApJob
from apscheduler.jobstores.base import JobLookupError
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from respsd.clock import Clock
from respsd.errors import RespsdError
from respsd.scheduling.clock_watch import ClockWatch
from respsd.scheduling.job import Job, JobStatus, Outcome, Verdict

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobRun:
    """What whoever counts is told of a run, or of one that could not begin on time."""

    job: str
    verdict: Verdict | str
    """A verdict; `delayed` where the run before went on too long; `missed` where the grace was over."""
    seconds: float = 0.0
    at_ns: int = 0


@dataclass(slots=True)
class _Entry:
    job: Job
    status: JobStatus
    started: float = 0.0
    is_active: bool = False
    is_owed: bool = False
    """A run was due while another went on."""
    next_in_seconds: float | None = None
    """What the run that just ended asked for."""
    waiting: list[Future[Outcome]] = field(default_factory=list)
    """Callers of `run_now` whose run has not begun."""


class JobScheduler:
    """Runs jobs from `start` to `stop`. Every method may be called from any thread."""

    def __init__(
        self,
        jobs: Sequence[Job],
        clock: Clock,
        *,
        misfire_grace_seconds: float | None = None,
        observe: Callable[[JobRun], None] = lambda _: None,
    ) -> None:
        """Take the jobs.

        :param misfire_grace_seconds: how late a run may begin; None: however late
        :param observe: told of every run
        """
        self._clock = clock
        self._observe = observe
        self._grace_seconds = misfire_grace_seconds
        self._lock = threading.Lock()  # guards the entries
        self._idle = threading.Condition(self._lock)
        self._entries = {job.name: _Entry(job, JobStatus(job.name)) for job in jobs}
        self._stop = threading.Event()
        self._watch = ClockWatch(clock, self._clock_jumped)
        self._scheduler = BackgroundScheduler(
            timezone=UTC, jobstores={"default": MemoryJobStore()}, executors={"default": _DaemonThreads()}
        )
        self._scheduler.add_listener(self._ended, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        self._scheduler.add_listener(self._was_busy, EVENT_JOB_MAX_INSTANCES)

    def start(self) -> None:
        """Begin; returns at once."""
        for name, entry in self._entries.items():
            job = entry.job
            first = job.interval_seconds if job.first_seconds is None else job.first_seconds
            self._scheduler.add_job(
                self._execute,
                IntervalTrigger(seconds=job.interval_seconds, timezone=UTC),
                next_run_time=_in(first),
                args=(entry,),
                id=name,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=self._grace_seconds and max(round(self._grace_seconds), 1),
            )
        for library in ("apscheduler.executors", "apscheduler.scheduler"):
            logging.getLogger(library).setLevel(logging.CRITICAL)  # what they say is said here, once
        self._scheduler.start()
        self._watch.start()

    def run_now(self, name: str) -> Future[Outcome]:
        """Have a job run as soon as it can; how that run ends. A run that is under way already does not count."""
        future: Future[Outcome] = Future()
        with self._lock:
            if self._stop.is_set():
                future.cancel()
                return future
            self._entries[name].waiting.append(future)
        self._run_in(name, 0.0)
        return future

    def status(self) -> Mapping[str, JobStatus]:
        """Every job's status, by name."""
        with self._lock:
            statuses = {name: entry.status for name, entry in self._entries.items()}
        return {name: replace(status, next_run_ns=self._next_run_ns(name)) for name, status in statuses.items()}

    def stop(self, timeout: float) -> bool:
        """Begin no more runs and ask those under way to end; False where one still goes on after `timeout` seconds.

        Idempotent.
        """
        if not self._stop.is_set():
            self._stop.set()
            self._watch.stop()
            if self._scheduler.running:
                self._scheduler.shutdown(wait=False)
        with self._idle:
            waiting = [future for entry in self._entries.values() for future in entry.waiting]
            ended = self._idle.wait_for(lambda: not any(e.is_active for e in self._entries.values()), timeout)
            late = [name for name, entry in self._entries.items() if entry.is_active]
        for future in waiting:
            future.cancel()
        if late:
            log.error("jobs_do_not_end", jobs=late)
        return ended

    def _execute(self, entry: _Entry) -> None:
        """One run, on a thread of its own."""
        with self._lock:
            entry.is_active, entry.started, entry.next_in_seconds = True, time.monotonic(), None
            entry.status = replace(entry.status, running_since_ns=self._clock.time_ns())
            waiting, entry.waiting = entry.waiting, []
        try:
            outcome = entry.job.run(self._stop)
        except BaseException as fault:
            self._finished(entry, "failed", str(fault) or type(fault).__name__)
            if not self._stop.is_set():  # what was cut short by the end is no failure to look into
                _log_failure(entry, fault)
            for future in waiting:
                future.set_exception(fault)
            raise
        entry.next_in_seconds = outcome.next_in_seconds
        self._finished(entry, outcome.verdict, outcome.detail)
        log_run = log.info if outcome.verdict == "done" else log.debug
        log_run("job_ran", job=entry.job.name, verdict=outcome.verdict, detail=outcome.detail)
        for future in waiting:
            future.set_result(outcome)

    def _finished(self, entry: _Entry, verdict: Verdict, detail: str) -> None:
        now = self._clock.time_ns()
        with self._lock:
            status = entry.status
            entry.status = replace(
                status,
                running_since_ns=None,
                last_finished_ns=now,
                last_done_ns=now if verdict == "done" else status.last_done_ns,
                last_verdict=verdict,
                last_detail=detail,
                failures_in_a_row=status.failures_in_a_row + 1 if verdict == "failed" else 0,
                runs=status.runs + 1,
            )
            seconds = time.monotonic() - entry.started
        self._observe(JobRun(entry.job.name, verdict, seconds, now))

    def _ended(self, event: JobEvent) -> None:
        """A run is over and another may begin."""
        entry = self._entries[event.job_id]
        if event.code == EVENT_JOB_MISSED:
            log.warning("job_missed", job=event.job_id)
            self._observe(JobRun(event.job_id, "missed"))
        with self._idle:
            entry.is_active = False
            self._idle.notify_all()
            delay: float | None = None
            if entry.waiting:
                delay = 0.0
            elif event.code == EVENT_JOB_ERROR:  # even where a run is owed: it would fail likewise
                delay = entry.job.delay_after(entry.status.failures_in_a_row)
            elif event.code == EVENT_JOB_EXECUTED and entry.next_in_seconds is not None:
                delay = entry.next_in_seconds
            elif entry.is_owed:
                delay = 0.0
            entry.is_owed = False
        if delay is not None:
            self._run_in(event.job_id, delay)

    def _was_busy(self, event: JobEvent) -> None:
        """A run was due while the one before still went on: it is made up for."""
        entry = self._entries[event.job_id]
        self._observe(JobRun(event.job_id, "delayed"))
        with self._lock:
            was_owed, entry.is_owed = entry.is_owed, entry.is_active
            is_over = not entry.is_active and entry.status.last_verdict == "done" and entry.next_in_seconds is None
        if not was_owed:  # once for a run that goes on for many intervals
            log.info("job_delayed", job=event.job_id)
        if is_over:
            self._run_in(event.job_id, 0.0)

    def _clock_jumped(self, seconds: float) -> None:
        """Runs planned by a clock that was set back would wait as long as it was set back."""
        for planned in self._scheduler.get_jobs():
            if seconds < 0:
                self._plan(planned.id, planned.next_run_time + timedelta(seconds=seconds))
        self._scheduler.wakeup()

    def _run_in(self, name: str, seconds: float) -> None:
        self._plan(name, _in(seconds))

    def _plan(self, name: str, moment: datetime) -> None:
        if not self._stop.is_set() and self._scheduler.running:
            with suppress(JobLookupError):  # it was stopped at this very moment
                self._scheduler.modify_job(name, next_run_time=moment)

    def _next_run_ns(self, name: str) -> int | None:
        planned: ApJob | None = self._scheduler.get_job(name) if self._scheduler.running else None
        return None if planned is None else round(planned.next_run_time.timestamp() * 1e9)


class _DaemonThreads(BaseExecutor):  # type: ignore[misc]  # the library has no types
    """A daemon thread for each run: one that hangs does not keep the process from ending."""

    def _do_submit_job(self, job: ApJob, run_times: list[datetime]) -> None:
        def work() -> None:
            try:
                events = run_job(job, job._jobstore_alias, run_times, self._logger.name)
            except BaseException:  # noqa: BLE001 - of the library itself, which catches what the job raises
                self._run_job_error(job.id, *sys.exc_info()[1:])
            else:
                self._run_job_success(job.id, events)

        threading.Thread(target=work, name=f"job-{job.id}", daemon=True).start()


def _in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _log_failure(entry: _Entry, fault: BaseException) -> None:
    failures = entry.status.failures_in_a_row
    if isinstance(fault, RespsdError):
        log.error("job_failed", job=entry.job.name, fault=str(fault), failures_in_a_row=failures)
    else:
        log.exception("job_failed", job=entry.job.name, failures_in_a_row=failures)
