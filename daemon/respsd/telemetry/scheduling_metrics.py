"""Metrics of what the daemon does by the clock, and of whether it learns.

time() - respsd_job_last_done_timestamp_seconds      how long a job has not been done
respsd_learning_paused                               1 while nothing is trained; the log says why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from respsd.experience.recorder import RecorderStatus
from respsd.experience.retention import Reason
from respsd.scheduling.job_scheduler import JobRun

_SECONDS = (0.01, 0.1, 1, 10, 60, 300, 1800)


class SchedulingMetrics:
    """Counts runs and deletions; methods may be called from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register in `registry`."""
        self._runs = Counter(
            "respsd_job_runs", "Runs of scheduled jobs by how they ended.", ["job", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "respsd_job_duration_seconds", "Duration of a run.", ["job"], buckets=_SECONDS, registry=registry
        )
        self._last_done = Gauge(
            "respsd_job_last_done_timestamp_seconds", "When a job last did its work.", ["job"], registry=registry
        )
        self._deleted = Counter(
            "respsd_transitions_deleted", "Windows that retention deleted, by limit.", ["reason"], registry=registry
        )
        self._log_bytes = Gauge(
            "respsd_db_bytes", "Bytes in use in the experience log, at the last look.", registry=registry
        )
        self._unreturned = Gauge(
            "respsd_db_unreturned_bytes",
            "Free bytes that the log's file cannot give back.",
            registry=registry,
        )
        self._paused = Gauge("respsd_learning_paused", "1 while no policy may be trained.", registry=registry)
        self._degraded = Gauge(
            "respsd_experience_log_degraded", "1 while rows cannot be written and wait.", registry=registry
        )

    def job_ran(self, run: JobRun) -> None:
        """Count a run, or one that could not begin on time."""
        self._runs.labels(run.job, run.verdict).inc()
        if run.verdict in ("done", "failed"):
            self._seconds.labels(run.job).observe(run.seconds)
        if run.verdict == "done":
            self._last_done.labels(run.job).set(run.at_ns / 1e9)

    def windows_deleted(self, windows: Mapping[Reason, int]) -> None:
        """Count windows by the limit that they went by."""
        for reason, count in windows.items():
            self._deleted.labels(reason).inc(count)

    def log_measured(self, size_bytes: int, unreturned_bytes: int) -> None:
        """Note the experience log's size."""
        self._log_bytes.set(size_bytes)
        self._unreturned.set(unreturned_bytes)

    def watch_learning(self, paused: Callable[[], str | None]) -> None:
        """Ask why learning is paused whenever the metrics are scraped."""
        self._paused.set_function(lambda: float(paused() is not None))

    def watch_recorder(self, status: Callable[[], RecorderStatus]) -> None:
        """Ask how the experience log fares whenever the metrics are scraped."""
        self._degraded.set_function(lambda: float(status().state == "degraded"))
