"""The recorder: takes finished requests from the engine and writes them to the experience log on a thread of its own.

The engine's thread only ever appends to a bounded queue. The writer groups whole requests into transactions; one that
fails is kept and tried again, later and later, while the bound on the queue bounds the memory. When there is no room,
whole requests are dropped and counted: a trajectory is in the log complete or not at all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog
from sqlalchemy import Engine

from respsd.errors import StorageError
from respsd.experience.backlog import Backlog, Entry
from respsd.experience.database import Clock, FileId, OpenLog
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin
from respsd.experience.writer import InvalidRows, Writer

DropReason = Literal["queue_full", "closed", "invalid"]
"""No room; the recorder is closed; the database refuses the row's values."""

T = TypeVar("T")

_BREATH_SHARE, _BREATH_SECONDS = 0.2, (0.005, 0.05)
"""Pause behind a transaction, as a share of its time and within these limits, for other programs' writes: who waits for
the file's lock looks for it now and then only, and would never find it free where one transaction follows the other."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Sizes and times of the recorder."""

    queue_rows: int = 8192
    """Rows that may wait, those of a failed transaction included."""
    batch_rows: int = 1000
    """Rows of a transaction; a single request may be larger."""
    batch_seconds: float = 0.2
    """How long the first request of a transaction may wait for others."""
    retry_seconds: float = 0.5
    """Pause after a failed transaction; doubles with each further failure."""
    retry_seconds_max: float = 30.0


@dataclass(frozen=True, slots=True)
class RecorderStatus:
    """The recorder at one moment."""

    state: Literal["ok", "degraded"]
    """degraded: the last transaction failed and waits to be tried again."""
    reason: str | None
    """Why it is degraded."""
    degraded_since_ns: int | None
    moved_aside: Path | None
    """Where a damaged log went, if the recorder met one."""
    pending_rows: int
    written_requests: int
    written_rows: int
    dropped_requests: Mapping[DropReason, int]
    dropped_rows: Mapping[DropReason, int]
    is_open: bool = True
    """The log has been opened, and so has this release's schema."""


class _Errand:
    """Work of another thread that needs the writer's connection."""

    def __init__(self, work: Callable[[Engine], Any]) -> None:
        self.work = work
        self.done: Future[Any] = Future()


class Recorder:
    """An ExperienceSink over a database. Its thread starts at once; `close` ends it."""

    def __init__(
        self,
        open_log: Callable[[], OpenLog],
        origin: Origin,
        clock: Clock = time.time_ns,
        settings: RecorderSettings = RecorderSettings(),
    ) -> None:
        """Start recording.

        :param open_log: opens the database; called on the writer's thread, so that a database which cannot be opened
            degrades the recorder and nothing else
        """
        self._clock = clock
        self._settings = settings
        self._backlog = Backlog(settings.queue_rows)
        self._writer = Writer(open_log, origin)
        self._lock = threading.Lock()  # guards the counters below
        self._reason: str | None = None
        self._degraded_since_ns: int | None = None
        self._errands: deque[_Errand] = deque()
        self._damage: tuple[str, FileId] | None = None
        self._written_requests = 0
        self._written_rows = 0
        self._dropped_requests: Counter[DropReason] = Counter()
        self._dropped_rows: Counter[DropReason] = Counter()
        self._thread = threading.Thread(target=self._run, name="experience-recorder", daemon=True)
        self._thread.start()

    def record(self, request: RequestRecord, transitions: Sequence[TransitionRecord]) -> bool:
        """Queue the rows whole, or drop them whole and count them; False when dropped. Never blocks, never raises."""
        entry = Entry(request, tuple(transitions))
        if self._backlog.offer(entry):
            return True
        self._drop([entry], "closed" if self._backlog.closed else "queue_full")
        return False

    def status(self) -> RecorderStatus:
        """How it fares; from any thread."""
        with self._lock:
            return RecorderStatus(
                state="ok" if self._reason is None else "degraded",
                reason=self._reason,
                degraded_since_ns=self._degraded_since_ns,
                moved_aside=self._writer.moved_aside,
                pending_rows=self._backlog.rows,
                written_requests=self._written_requests,
                written_rows=self._written_rows,
                dropped_requests=dict(self._dropped_requests),
                dropped_rows=dict(self._dropped_rows),
                is_open=self._writer.is_open,
            )

    def prepare(self) -> None:
        """Have the log opened now, made or migrated where it must be, and not with the first request."""
        self._backlog.wake()

    def report_damage(self, fault: str, file: FileId) -> None:
        """Somebody who read the file found it damaged: it is set aside and a new one begun, on the writer's thread."""
        with self._lock:
            self._damage = fault, file
        self._degraded(fault)
        self._backlog.wake()

    def between_batches(self, work: Callable[[Engine], T], timeout: float) -> T:
        """Do short work on the writer's thread and with its connection, when it is between two transactions.

        Through a connection of its own it would have to win the file's lock against a writer that may take it again at
        once, and SQLite's waiting is not in turn. Returns or raises what the work does, or raises StorageError where
        the recorder could not come to it in time.
        """
        errand = _Errand(work)
        with self._lock:
            self._errands.append(errand)
        self._backlog.wake()
        try:
            return errand.done.result(timeout)  # type: ignore[no-any-return]
        except (TimeoutError, CancelledError) as fault:
            errand.done.cancel()
            reason = self.status().reason or "it is closed, or busy"
            raise StorageError(f"the experience log's writer is not free: {reason}") from fault

    def flush(self, timeout: float) -> bool:
        """Write what was recorded so far without delay; False where that took longer than `timeout` seconds."""
        return self._backlog.flush(timeout)

    def close(self, timeout: float) -> bool:
        """Take nothing more, write what is left for at most `timeout` seconds, drop the rest; False if any was.

        Idempotent.
        """
        self._backlog.close()
        flushed = self._backlog.flush(timeout)
        self._drop(self._backlog.abandon(), "closed")
        self._thread.join(timeout)
        return flushed

    def _run(self) -> None:
        while (batch := self._backlog.take(self._settings.batch_rows, self._settings.batch_seconds)) is not None:
            began = time.monotonic()
            self._store(batch)
            self._backlog.settle(batch)
            self._run_errand()
            if batch:
                least, most = _BREATH_SECONDS
                time.sleep(min(max(_BREATH_SHARE * (time.monotonic() - began), least), most))
        with self._lock:
            for errand in self._errands:
                errand.done.cancel()
        self._writer.close()

    def _run_errand(self) -> None:
        """One, so that rows do not wait for many."""
        with self._lock:
            errand = self._errands.popleft() if self._errands else None
            more = bool(self._errands)
        if errand is not None and errand.done.set_running_or_notify_cancel():
            try:
                errand.done.set_result(self._writer.lend(errand.work))
            except Exception as fault:  # noqa: BLE001 - it is the caller's
                errand.done.set_exception(fault)
        if more:
            self._backlog.wake()

    def _store(self, batch: Sequence[Entry]) -> None:
        """Write the batch, however often it takes, unless the recorder is closed meanwhile."""
        pause = self._settings.retry_seconds
        while not self._backlog.abandoned:
            nudges = self._backlog.nudges
            try:
                if (damage := self._taken_damage()) is not None:
                    self._writer.condemn(*damage)
                self._writer.write(batch)
            except InvalidRows as fault:
                self._store_one_by_one(batch, fault)
                return
            except StorageError as fault:
                self._degraded(str(fault))
                self._backlog.pause(pause, nudges)
                pause = min(2 * pause, self._settings.retry_seconds_max)
            else:
                self._written(batch)
                return
        self._drop(batch, "closed")

    def _store_one_by_one(self, batch: Sequence[Entry], fault: InvalidRows) -> None:
        """Find the request that the database refuses, so that it does not take the others with it."""
        if len(batch) == 1:
            log.error("experience_row_refused", request_id=batch[0].request.request_id, fault=str(fault))
            self._drop(batch, "invalid")
            return
        for entry in batch:
            self._store([entry])

    def _taken_damage(self) -> tuple[str, FileId] | None:
        with self._lock:
            damage, self._damage = self._damage, None
            return damage

    def _written(self, batch: Sequence[Entry]) -> None:
        with self._lock:
            self._written_requests += len(batch)
            self._written_rows += sum(entry.rows for entry in batch)
            recovered = self._reason is not None
            self._reason = self._degraded_since_ns = None
        if recovered:
            log.info("experience_log_recovered")

    def _degraded(self, reason: str) -> None:
        with self._lock:
            news = reason != self._reason
            self._reason = reason
            if self._degraded_since_ns is None:
                self._degraded_since_ns = self._clock()
        if news:
            log.error("experience_log_degraded", reason=reason)

    def _drop(self, batch: Sequence[Entry], reason: DropReason) -> None:
        with self._lock:
            self._dropped_requests[reason] += len(batch)
            self._dropped_rows[reason] += sum(entry.rows for entry in batch)
