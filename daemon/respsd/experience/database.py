"""transitions.db: opened for the one writer, or for readers; checked and migrated before it is written."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from policy_store.sqlite import is_corrupt, reader_engine, writer_engine
from respsd.errors import DatabaseDamaged, StorageError

Clock = Callable[[], int]
"""UTC, nanoseconds since the epoch."""
FileId = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long a command waits for the file's lock beside a busy daemon."""
QUICK_CHECK_SECONDS = 2.0
"""The check of a big file is cut short here, so that a daemon starts in time."""
_INSTRUCTIONS_BETWEEN_LOOKS = 10_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The experience log, open for writing."""

    engine: Engine
    path: Path
    file_id: FileId
    """The file that was opened."""
    moved_aside: Path | None = None
    """Where a damaged file went that was found in its place."""

    def is_in_place(self) -> bool:
        """False once somebody moved the file away or deleted it: SQLite would write on to it without a word."""
        return file_id(self.path) == self.file_id


class _Damaged(Exception):
    """The file is no database, or a broken one."""


def open_log(path: Path, clock: Clock = time.time_ns) -> OpenLog:
    """Open the log for its one writer: make it, or check it and bring its schema up to date.

    A damaged file is moved aside with its write-ahead log and a new one begun. Raises StorageError where the file
    cannot be opened or was written by a newer respsd.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _opened(path)
        except _Damaged as damage:
            return _opened(path, set_aside(path, str(damage), clock))
    except (DBAPIError, sqlite3.Error, _Damaged) as fault:
        raise StorageError(f"{path}: {getattr(fault, 'orig', fault)}") from fault
    except OSError as fault:
        raise StorageError(str(fault)) from fault


def open_log_for_reading(path: Path) -> Engine:
    """An engine that reads the log, whether or not a daemon has it open, and leaves no trace.

    Raises StorageError where there is no log.
    """
    require_log(path)
    return reader_engine(path)


def require_log(path: Path) -> None:
    """Raise StorageError where there is no log."""
    if not path.is_file():
        raise StorageError(f"{path}: there is no experience log")


def patiently(work: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Do work that may find the file locked by another program's writes, again and again if it must be.

    SQLite's waiting is not in turn, so that one of two programs may have to wait longer than its time limit.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except (DBAPIError, sqlite3.Error) as fault:
            if not is_busy(fault) or time.monotonic() > deadline:
                raise


def is_busy(fault: Exception) -> bool:
    """Whether an error says that another connection has the file's lock."""
    code = getattr(getattr(fault, "orig", fault), "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_BUSY


def fault_named(path: Path, fault: Exception) -> StorageError:
    """A driver's error as this project names it: DatabaseDamaged where the file is broken, else StorageError."""
    kind = DatabaseDamaged if is_corrupt(fault) else StorageError
    return kind(f"{path}: {getattr(fault, 'orig', fault)}")


def set_aside(path: Path, fault: str, clock: Clock = time.time_ns) -> Path:
    """Rename a damaged log with its write-ahead log, so that a new one can be begun; where it went.

    Only the log's one writer may do this, with its own connections closed.
    """
    moment = datetime.fromtimestamp(clock() / 1e9, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.damaged-{moment}")
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    log.error("experience_log_damaged", fault=fault, moved_to=str(aside))
    return aside


def _opened(path: Path, moved_aside: Path | None = None) -> OpenLog:
    engine = _open_sound(path)
    identity = file_id(path)
    if identity is None:
        engine.dispose()
        raise StorageError(f"{path}: somebody moved the file while it was opened")
    return OpenLog(engine, path, identity, moved_aside)


def file_id(path: Path) -> FileId | None:
    """Which file is at the path now; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _open_sound(path: Path) -> Engine:
    from respsd.experience.migrate import migrate  # slow to import, and readers do without

    engine = writer_engine(path, synchronous="NORMAL")
    try:
        _quick_check(engine)
        with engine.begin() as connection:
            migrate(connection)
    except BaseException as fault:
        engine.dispose()
        if is_corrupt(fault):
            raise _Damaged(str(getattr(fault, "orig", fault))) from fault
        raise
    return engine


def _quick_check(engine: Engine) -> None:
    """Look for damage, for at most `QUICK_CHECK_SECONDS`."""
    stop_at = time.monotonic() + QUICK_CHECK_SECONDS
    pooled = engine.raw_connection()
    try:
        connection = pooled.driver_connection
        assert isinstance(connection, sqlite3.Connection)
        connection.set_progress_handler(lambda: time.monotonic() > stop_at, _INSTRUCTIONS_BETWEEN_LOOKS)
        try:
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.OperationalError as fault:
            if fault.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            log.info("experience_log_check_cut_short", seconds=QUICK_CHECK_SECONDS)
            health = "ok"
        finally:
            connection.set_progress_handler(None, 0)
    finally:
        pooled.close()
    if health != "ok":
        raise _Damaged(str(health))
