"""Backups of an SQLite file: a copy of one moment, taken while others write, verified before it counts, and rotated."""

from __future__ import annotations

import filecmp
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience.database import Clock, fault_named
from respsd.experience.integrity import quick_check

_TEMPORARY = ".tmp-"
_MOMENT = "%Y%m%dT%H%M%S.%fZ"
_PAGES = 256
"""Pages that are copied between two looks at `stop`; 1 MiB."""
_PAUSE_SECONDS = 0.001
"""Between those, for the machine's other work."""


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup of one file."""

    path: Path
    size_bytes: int
    is_new: bool
    """False: the file is what its newest backup holds, and no other was made."""
    removed: tuple[Path, ...] = ()
    """Older ones that went, so that the number set stays."""


class BackupStopped(StorageError):
    """The daemon stops while a backup is being made; nothing is left of it."""


def back_up(
    source: Path,
    folder: Path,
    *,
    keep: int,
    clock: Clock = time.time_ns,
    stop: threading.Event | None = None,
) -> Backup:
    """Copy `source` to `folder/<stem>-<time>.db` and remove all but the `keep` newest of its backups.

    Where the clock was set back, the time in the name is the one just after the newest backup's: the order of names is
    the order in which backups were made, whatever the clock says. A file's own time stays the clock's.

    The copy is one moment's state whatever is written meanwhile, is checked, and is there whole or not at all. Raises
    StorageError, DatabaseDamaged where the source or the copy is broken, or BackupStopped.
    """
    if not source.is_file():
        raise StorageError(f"{source}: there is no such database")
    now = datetime.fromtimestamp(clock() / 1e9, UTC)
    temporary = folder / f"{_TEMPORARY}{source.stem}-{os.getpid()}-{now.strftime(_MOMENT)}.db"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_room(source, folder)
        _copy(source, temporary, stop or threading.Event())
        before = backups_of(source, folder)
        if before and filecmp.cmp(temporary, before[-1], shallow=False):
            return Backup(before[-1], before[-1].stat().st_size, is_new=False)
        final = folder / f"{source.stem}-{_name(source, now, before)}.db"
        _publish(temporary, final)
        return Backup(final, final.stat().st_size, is_new=True, removed=_rotate(source, folder, keep))
    except sqlite3.Error as fault:
        raise fault_named(source, fault) from fault
    except OSError as fault:
        raise StorageError(f"{source}: it cannot be backed up to {folder}: {fault.strerror}") from fault
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)


def backups_of(source: Path, folder: Path) -> list[Path]:
    """Backups of a file, oldest first."""
    return sorted(folder.glob(f"{source.stem}-[0-9]*T[0-9]*Z.db"))


def age_seconds(source: Path, folder: Path, clock: Clock = time.time_ns) -> float | None:
    """How old the newest backup is; None where there is none, or nobody knows since the clock was set back."""
    found = backups_of(source, folder)
    if not found:
        return None
    age = clock() / 1e9 - found[-1].stat().st_mtime
    return age if age >= 0 else None


def _name(source: Path, now: datetime, before: Sequence[Path]) -> str:
    """What a new backup is called by: the time, or the next moment after the newest backup's name."""
    for path in reversed(before):
        with suppress(ValueError, OverflowError):  # a person may have put a file of another name there
            newest = datetime.strptime(path.stem.removeprefix(f"{source.stem}-"), _MOMENT).replace(tzinfo=UTC)
            return max(now, newest + timedelta(microseconds=1)).strftime(_MOMENT)
    return now.strftime(_MOMENT)


def _check_room(source: Path, folder: Path) -> None:
    """Leave a full disk to those who cannot do without."""
    needed, free = source.stat().st_size, shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(f"{source}: a backup takes {needed} bytes, and {folder} has {free} free")


def _copy(source: Path, target: Path, stop: threading.Event) -> None:
    def look(_status: int, _remaining: int, _total: int) -> None:
        if stop.is_set():
            raise BackupStopped(f"{source}: the backup was stopped")

    # Writable, though nothing is written: with a read-only connection the write-ahead log's files would be left behind.
    uri = f"file:{quote(str(source))}?mode=rw"
    with (
        closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as reading,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        reading.execute("PRAGMA query_only = ON")
        # Holding one snapshot: otherwise every write by another connection would have the copy begin anew.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        reading.backup(copy, pages=_PAGES, progress=look, sleep=_PAUSE_SECONDS)
        reading.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, which can be copied as it is
        health = quick_check(copy, stop)
    if health is None:
        raise BackupStopped(f"{source}: the backup was stopped")
    if health != "ok":
        raise DatabaseDamaged(f"{source}: its copy is damaged: {health}")


def _publish(temporary: Path, final: Path) -> None:
    _sync(temporary)
    temporary.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rotate(source: Path, folder: Path, keep: int) -> tuple[Path, ...]:
    """Remove the oldest, and what a killed backup left behind."""
    surplus = backups_of(source, folder)[:-keep]
    leftovers = [path for path in folder.glob(f"{_TEMPORARY}{source.stem}-*") if not _is_alive(path)]
    for path in (*surplus, *leftovers):
        with suppress(FileNotFoundError):
            path.unlink()
    return tuple(surplus)


def _is_alive(temporary: Path) -> bool:
    """Whether another process is making this backup."""
    pid = temporary.name.rsplit("-", 2)[-2]
    return pid != str(os.getpid()) and Path("/proc", pid).exists()
