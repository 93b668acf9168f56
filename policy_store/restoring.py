"""A damaged registry.db at start: set aside, and its newest sound backup put in its place.

Without a backup the store begins anew, and opening it adopts every version folder that verifies. What backup or folders
do not tell is lost: moves of aliases since then, and which versions had been quarantined since then. Versions stored
after the backup are adopted too; no alias points to them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from policy_store.artifact import sync_folder
from policy_store.errors import StoreUnavailable
from policy_store.migrations import OLDEST_READABLE
from policy_store.presence import out_of_service
from policy_store.sqlite import BUSY_TIMEOUT_SECONDS, is_corrupt

REGISTRY = "registry.db"
_SUFFIXES = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Restored:
    """What was done."""

    fault: str
    """What was wrong with the file."""
    set_aside: Path | None
    """Where it went; None where there was none."""
    backup: Path | None
    """What is in its place; None: a registry that begins anew."""

    def __str__(self) -> str:
        kept = "" if self.set_aside is None else f"; it is kept as {self.set_aside.name}"
        if self.backup is not None:
            return f"the registry was damaged ({self.fault}) and its backup {self.backup.name} took its place{kept}"
        return (
            f"the registry was damaged ({self.fault}) and had no backup: it was built again from the version folders"
            f" and the baseline serves{kept}"
        )


def restore_registry(store: Path, backups: Sequence[Path], clock: Callable[[], int] = time.time_ns) -> Restored | None:
    """Put a damaged or lost registry right before the store is opened; None where nothing is wrong with it.

    :param backups: oldest first

    Raises StoreInService where another daemon has the store, and StoreUnavailable where it cannot be done.
    """
    file = store / REGISTRY
    if not (store / "versions").is_dir():
        return None  # a first start
    try:
        fault = damage(file)
        if fault is None:
            return None
        with out_of_service(store):
            aside = _set_aside(file, clock)
            backup = next((each for each in reversed(backups) if damage(each) is None), None)
            if backup is not None:
                _copy(backup, file)
            sync_folder(store)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(store, f"{REGISTRY} cannot be restored: {error}") from error
    return Restored(fault, aside, backup)


def damage(file: Path) -> str | None:
    """What is wrong with a registry file: None for a sound one, and for one that a newer release wrote.

    Raises sqlite3.Error where it cannot be looked at for another reason than damage.
    """
    try:
        if not file.is_file():
            return "it is gone"
        if file.stat().st_size == 0:
            return "it is empty"
        uri = f"file:{quote(str(file))}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = ON")
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as fault:
        if is_corrupt(fault):
            return str(fault)
        raise
    if health != "ok":
        return str(health).splitlines()[0]
    return None if schema >= OLDEST_READABLE else "it has no tables"


def _set_aside(file: Path, clock: Callable[[], int]) -> Path | None:
    moment = datetime.fromtimestamp(clock() / 1e9, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = file.with_name(f"{file.name}.damaged-{moment}")
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside if aside.exists() else None


def _copy(backup: Path, file: Path) -> None:
    """Whole or not at all: under a temporary name, synced, then renamed."""
    temporary = file.with_name(f"{file.name}.restoring-{os.getpid()}")
    try:
        shutil.copyfile(backup, temporary)
        with temporary.open("rb+") as copied:
            os.fsync(copied.fileno())
        temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)
