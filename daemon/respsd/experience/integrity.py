"""Looks for damage in an SQLite file, and says what is in it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from policy_store.sqlite import BUSY_TIMEOUT_SECONDS, is_corrupt
from respsd.errors import StorageError
from respsd.experience.database import FileId, file_id

_INSTRUCTIONS_BETWEEN_LOOKS = 100_000
_FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FileReport:
    """One database file at one moment."""

    path: Path
    file: FileId
    faults: tuple[str, ...]
    """Empty where it is sound."""
    size_bytes: int
    wal_bytes: int
    free_bytes: int = 0
    """Of pages that hold nothing."""
    gives_back: bool = True
    """Whether free pages can be given back to the file system, without rewriting the file."""
    schema: str | None = None
    """Revision of the log's schema, or the registry's number."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table."""
    complete: bool = True
    """False: it was stopped before all was looked at."""

    @property
    def is_sound(self) -> bool:
        """No fault was found."""
        return not self.faults


def inspect(path: Path, *, thorough: bool = False, stop: threading.Event | None = None) -> FileReport:
    """Check a file beside those who write to it; changes nothing.

    :param thorough: also compare every index with its table, which takes several times as long

    Raises StorageError where it cannot be opened for another reason than damage.
    """
    identity = file_id(path)
    if identity is None:
        raise StorageError(f"{path}: there is no such database")
    try:
        # Writable, though nothing is written: with a read-only connection the write-ahead log's files would be left.
        uri = f"file:{quote(str(path))}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")  # opens the file
            if file_id(path) != identity:
                raise StorageError(f"{path}: somebody moved the file while it was opened")
            return _report(connection, path, identity, thorough, stop or threading.Event())
    except sqlite3.Error as fault:
        if is_corrupt(fault):
            return FileReport(path, identity, (str(fault),), _size(path), _size(_wal(path)))
        raise StorageError(f"{path}: {fault}") from fault


def quick_check(connection: sqlite3.Connection, stop: threading.Event, *, thorough: bool = False) -> str | None:
    """`ok`, or what is wrong, one fault a line; None once `stop` is set."""
    connection.set_progress_handler(stop.is_set, _INSTRUCTIONS_BETWEEN_LOOKS)
    try:
        check = "integrity_check" if thorough else "quick_check"
        return "\n".join(row[0] for row in connection.execute(f"PRAGMA {check}({_FAULTS_SHOWN})"))
    except sqlite3.OperationalError as fault:
        if fault.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return None
    finally:
        connection.set_progress_handler(None, 0)


def wal_bytes(path: Path) -> int:
    """Size of a database's write-ahead log; 0 where there is none."""
    return _size(_wal(path))


def _report(
    connection: sqlite3.Connection, path: Path, identity: FileId, thorough: bool, stop: threading.Event
) -> FileReport:
    health = quick_check(connection, stop, thorough=thorough)
    faults = [] if health in (None, "ok") else str(health).splitlines()
    orphans = connection.execute("PRAGMA foreign_key_check").fetchmany(_FAULTS_SHOWN) if health == "ok" else []
    faults += [f"{table} row {row} refers to a row of {parent} that is not there" for table, row, parent, _ in orphans]
    page = _pragma(connection, "page_size")
    return FileReport(
        path=path,
        file=identity,
        faults=tuple(faults),
        size_bytes=_size(path),
        wal_bytes=_size(_wal(path)),
        free_bytes=_pragma(connection, "freelist_count") * page,
        gives_back=_pragma(connection, "auto_vacuum") == 2,
        schema=_schema(connection),
        rows={} if faults else _rows(connection),
        complete=health is not None,
    )


def _schema(connection: sqlite3.Connection) -> str | None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return None if row is None else str(row[0])
    number = _pragma(connection, "user_version")
    return str(number) if number else None


def _rows(connection: sqlite3.Connection) -> dict[str, int]:
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
        "AND name != 'alembic_version' ORDER BY name"
    ).fetchall()
    return {name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for (name,) in tables}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
