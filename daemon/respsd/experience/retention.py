"""Retention: deletes the oldest requests, with their windows, until the experience log is within its limits.

Every write is short and followed by a pause, so that the recorder never waits long; in a daemon the recorder's own
thread does it, between two of its transactions. What to delete is looked for in a reader's snapshot, which holds up
nobody. A request goes whole or stays whole. The newest one always stays: SQLite would otherwise give its number to the
next, and readers that remember how far they came would be misled.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, delete, exists, func, select
from sqlalchemy.exc import DBAPIError

from policy_store.sqlite import reader_engine, writer_engine
from respsd.experience.database import fault_named, patiently, require_log
from respsd.experience.models import RequestRow, TransitionRow
from respsd.experience.queries import EXPLORERS_ARM

Reason = Literal["age", "rows", "bytes", "bytes_unread"]
"""Which limit a window went by; `bytes_unread`: the next update had not read it yet."""

T = TypeVar("T")

_VACUUM_PAGES = 2048
_PAUSE_SECONDS = 0.02
_INCREMENTAL = 2
"""What `PRAGMA auto_vacuum` answers for a file that can give pages back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the log may hold; None is no limit."""

    finished_before_ns: int | None = None
    """Requests that finished earlier go."""
    windows: int | None = None
    size_bytes: int | None = None
    """Of the file's pages that are in use."""
    unread_after: int | None = None
    """Explorers' requests with a higher key go only by `size_bytes`; None spares none."""


@dataclass(slots=True)
class Pruned:
    """What went."""

    requests: int = 0
    windows: Counter[Reason] = field(default_factory=Counter)
    freed_bytes: int = 0
    """Given back to the file system, once the write-ahead log is folded in."""
    size_bytes: int = 0
    """In use in the end."""
    unreturned_bytes: int = 0
    """Free inside the file and kept there: it was made without incremental vacuum."""


class TakeTurn(Protocol):
    """Does a short write when the file's other writers leave room for it."""

    def __call__(self, write: Callable[[Engine], T]) -> T:
        """Call `write` with a writer's engine; raises StorageError where there was no room in time."""
        ...


@dataclass(frozen=True, slots=True)
class _How:
    take_turn: TakeTurn
    chunk_rows: int
    stop: threading.Event
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Victim:
    key: int
    windows: int


def prune(
    path: Path,
    limits: Limits,
    *,
    chunk_rows: int,
    take_turn: TakeTurn | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Bring the log within its limits; ends early, between two transactions, once `stop` is set.

    :param chunk_rows: rows of one transaction; a single request may have more
    :param take_turn: lends a connection; None opens one, as another program must
    :param dry_run: only say what would go; by size that is an estimate

    Raises StorageError, or DatabaseDamaged.
    """
    require_log(path)
    try:
        with ExitStack() as stack:
            turn = take_turn or stack.enter_context(_own_connection(path))
            how = _How(turn, chunk_rows, stop or threading.Event(), dry_run)
            return _Pass(stack.enter_context(reader_engine(path).connect()), limits, how).run()
    except (DBAPIError, sqlite3.Error) as fault:
        raise fault_named(path, fault) from fault


@contextmanager
def _own_connection(path: Path) -> Iterator[TakeTurn]:
    engine = writer_engine(path, synchronous="NORMAL")
    try:
        with engine.connect():  # whoever reads beside it now sees the write-ahead log
            yield lambda write: patiently(lambda: write(engine))
    finally:
        engine.dispose()


class _Pass:
    def __init__(self, reading: Connection, limits: Limits, how: _How) -> None:
        self._reading = reading
        self._limits = limits
        self._how = how
        self._pruned = Pruned()
        self._gone: set[int] = set()
        """In a dry run, the requests that would be deleted by now."""

    def run(self) -> Pruned:
        limits = self._limits
        self._windows = self._count()
        with self._reading.begin():
            self._keep_from = _newest(self._reading)  # what comes meanwhile is not this pass's: it would never end
        if limits.finished_before_ns is not None:
            self._delete("age", RequestRow.finished_at_ns < limits.finished_before_ns)
        if limits.windows is not None:
            self._delete_excess(limits.windows)
        if limits.size_bytes is not None:
            self._delete("bytes")
            self._delete("bytes_unread")
        if not self._how.dry_run:
            self._give_back()
        self._pruned.size_bytes = self._used_bytes()
        return self._pruned

    def _delete(self, reason: Reason, *conditions: ColumnElement[bool]) -> None:
        """Delete what the conditions say; by size, while the file is too large."""
        for victims in self._victims(reason, *conditions):
            if reason != "age" and not self._is_too_large():
                return
            self._delete_chunk(reason, victims)

    def _delete_excess(self, limit: int) -> None:
        """Delete while there are more windows than the limit."""
        for victims in self._victims("rows"):
            # Counted each time: another program may be deleting too, and both together must not go below the limit.
            gone = sum(self._pruned.windows.values()) if self._how.dry_run else 0
            excess = self._count() - gone - limit
            if excess <= 0:
                return
            chunk: list[_Victim] = []
            for victim in victims:
                if excess > 0:
                    chunk.append(victim)
                    excess -= victim.windows
            self._delete_chunk("rows", chunk)

    def _victims(self, reason: Reason, *conditions: ColumnElement[bool]) -> Iterator[list[_Victim]]:
        """The requests that may go, oldest first, chunk by chunk until it is to stop."""
        after = 0
        while not self._how.stop.is_set() and (victims := self._next_victims(reason, after, *conditions)):
            after = victims[-1].key
            yield [victim for victim in victims if victim.key not in self._gone]

    def _next_victims(self, reason: Reason, after: int, *conditions: ColumnElement[bool]) -> list[_Victim]:
        """As many as have `chunk_rows` rows together, or one."""
        windows = select(func.count()).where(TransitionRow.request_row == RequestRow.id).scalar_subquery()
        query = select(RequestRow.id, windows).where(RequestRow.id > after, *conditions)
        if reason != "bytes_unread" and self._limits.unread_after is not None:
            query = query.where(~_unread(self._limits.unread_after))
        victims: list[_Victim] = []
        rows, most = 0, self._how.chunk_rows
        with self._reading.begin():
            query = query.where(RequestRow.id < self._keep_from).order_by(RequestRow.id).limit(most)
            for key, count in self._reading.execute(query):
                rows += 1 + count
                if victims and rows > most:
                    break
                victims.append(_Victim(key, count))
        return victims

    def _delete_chunk(self, reason: Reason, victims: Sequence[_Victim]) -> None:
        keys = [victim.key for victim in victims]
        requests, windows = len(keys), sum(victim.windows for victim in victims)
        if self._how.dry_run:
            self._gone.update(keys)
        else:
            requests, windows = self._how.take_turn(lambda engine: _delete_requests(engine, keys))
            self._how.stop.wait(_PAUSE_SECONDS)
        self._pruned.windows[reason] += windows
        self._pruned.requests += requests

    def _count(self) -> int:
        with self._reading.begin():
            return self._reading.execute(select(func.count()).select_from(TransitionRow)).scalar_one()

    def _is_too_large(self) -> bool:
        return self._limits.size_bytes is not None and self._used_bytes() > self._limits.size_bytes

    def _used_bytes(self) -> int:
        """Pages in use; of a dry run what its deletions would leave, by the mean of all windows."""
        used = (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")
        if not self._how.dry_run:
            return used
        return round(used * (1 - sum(self._pruned.windows.values()) / max(self._windows, 1)))

    def _give_back(self) -> None:
        """Shrink the file by its free pages, a few at a time."""
        page = self._pragma("page_size")
        if self._pragma("auto_vacuum") != _INCREMENTAL:
            self._pruned.unreturned_bytes = self._pragma("freelist_count") * page
            return
        # As many as are free now: others may free pages, or take them, as fast as these go.
        for _ in range(0, self._pragma("freelist_count"), _VACUUM_PAGES):
            if self._how.stop.is_set():
                return
            self._pruned.freed_bytes += self._how.take_turn(_free_pages) * page
            self._how.stop.wait(_PAUSE_SECONDS)

    def _pragma(self, name: str) -> int:
        with self._reading.begin():
            return int(self._reading.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def _delete_requests(engine: Engine, keys: Sequence[int]) -> tuple[int, int]:
    """Requests and windows that went."""
    with engine.begin() as connection:
        windows = connection.execute(delete(TransitionRow).where(TransitionRow.request_row.in_(keys))).rowcount
        requests = connection.execute(delete(RequestRow).where(RequestRow.id.in_(keys))).rowcount
    return requests, windows


def _free_pages(engine: Engine) -> int:
    """Give some pages back; how many the file lost."""
    pooled = engine.raw_connection()
    try:
        connection = pooled.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        # `execute` would take this statement's first step alone, and free one page
        (before,) = connection.execute("PRAGMA page_count").fetchone()
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        (after,) = connection.execute("PRAGMA page_count").fetchone()
        return max(int(before) - int(after), 0)
    finally:
        pooled.close()


def _newest(connection: Connection) -> int:
    """From this key on requests stay: the newest request's, or that of the newest window."""
    request = connection.execute(select(func.max(RequestRow.id))).scalar_one() or 0
    newest_window = select(TransitionRow.request_row).order_by(TransitionRow.id.desc()).limit(1)
    window = connection.execute(newest_window).scalar_one_or_none()
    return request if window is None else min(request, window)


def _unread(after: int) -> ColumnElement[bool]:
    """The request is an explorer's, and no update has read it."""
    is_explorers = (TransitionRow.request_row == RequestRow.id) & (TransitionRow.arm == EXPLORERS_ARM)
    return (RequestRow.id > after) & exists(select(TransitionRow.id).where(is_explorers))
