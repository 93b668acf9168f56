"""Upkeep of the databases: limits of the experience log and of the versions, backups, looks for damage. Each as a job's
run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from policy_store import PolicyStore, StoreError
from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience.database import Clock, FileId, file_id
from respsd.experience.integrity import FileReport, inspect
from respsd.experience.retention import Limits, Pruned, Reason, TakeTurn, prune
from respsd.experience.snapshot import back_up
from respsd.scheduling.job import Outcome

log = structlog.get_logger(__name__)


class UpkeepObserver(Protocol):
    """Counts what upkeep does."""

    def windows_deleted(self, windows: Mapping[Reason, int]) -> None:
        """Retention deleted windows, by the limit that they went by."""
        ...

    def log_measured(self, size_bytes: int, unreturned_bytes: int) -> None:
        """The experience log's pages in use, and free bytes that it cannot give back."""
        ...


@dataclass(frozen=True, slots=True)
class Retention:
    """Keeps the experience log within its limits."""

    path: Path
    limits: Callable[[], Limits]
    """Worked out anew for each run: ages and what is unread move on. Raises StorageError."""
    chunk_rows: int
    take_turn: TakeTurn
    """The recorder's."""
    observer: UpkeepObserver
    damaged: Callable[[str, FileId], None]
    """Told where the log turns out to be damaged."""

    def __call__(self, stop: threading.Event) -> Outcome:
        """The job's run."""
        identity = file_id(self.path)
        if identity is None:
            return Outcome("skipped", "there is no experience log yet")
        try:
            pruned = prune(self.path, self.limits(), chunk_rows=self.chunk_rows, take_turn=self.take_turn, stop=stop)
        except DatabaseDamaged as fault:
            self.damaged(str(fault), identity)
            raise
        self.observer.windows_deleted(pruned.windows)
        self.observer.log_measured(pruned.size_bytes, pruned.unreturned_bytes)
        if pruned.unreturned_bytes:
            log.warning(
                "experience_log_cannot_shrink", free_bytes=pruned.unreturned_bytes, remedy="respsd db migrate --rewrite"
            )
        return Outcome("done", _pruned_text(pruned))


@dataclass(frozen=True, slots=True)
class Backups:
    """Backs up every database that is there; one that fails does not keep the others from it."""

    sources: Sequence[Path]
    folder: Path
    keep: int
    clock: Clock

    def __call__(self, stop: threading.Event) -> Outcome:
        """The job's run."""
        made: list[str] = []
        faults: list[StorageError] = []
        for source in self.sources:
            if not source.is_file():
                continue
            try:
                backup = back_up(source, self.folder, keep=self.keep, clock=self.clock, stop=stop)
                made.append(backup.path.name if backup.is_new else f"{source.name} unchanged")
            except StorageError as fault:
                faults.append(fault)
        if faults:
            raise StorageError("; ".join(map(str, faults)))
        return Outcome("done", ", ".join(made)) if made else Outcome("skipped", "there is no database yet")


@dataclass(frozen=True, slots=True)
class Checks:
    """Looks for damage, and tells those whom it concerns."""

    transitions: Path
    registry: Path
    log_damaged: Callable[[str, FileId], None]
    """Told of a damaged experience log, which is set aside."""
    registry_checked: Callable[[str | None], None]
    """Told what is wrong with the registry, or None."""

    def __call__(self, stop: threading.Event) -> Outcome:
        """The job's run. Damage is a failure, so that it is looked for again soon."""
        faults: list[str] = []
        reports = [inspect(path, stop=stop) for path in (self.registry, self.transitions) if path.is_file()]
        for report in reports:
            fault = _fault(report)
            if report.path == self.registry:
                self.registry_checked(fault)
            elif fault is not None:
                self.log_damaged(fault, report.file)
            if fault is not None:
                faults.append(f"{report.path}: {fault}")
        if faults:
            raise DatabaseDamaged("; ".join(faults))
        if not reports:
            return Outcome("skipped", "there is no database yet")
        if not all(report.complete for report in reports):
            return Outcome("skipped", "stopped")
        return Outcome("done", ", ".join(f"{report.path.name} is sound" for report in reports))


@dataclass(frozen=True, slots=True)
class Versions:
    """Removes old policy versions; every update makes one."""

    store: PolicyStore
    keep: int

    def __call__(self, _stop: threading.Event) -> Outcome:
        """The job's run."""
        try:
            removed = self.store.collect(self.keep, actor="retention", reason=f"the newest {self.keep} stay").removed
        except StoreError as fault:
            raise StorageError(str(fault)) from fault
        return Outcome("done", f"{len(removed)} versions removed" if removed else "within the limit")


def _fault(report: FileReport) -> str | None:
    return None if report.is_sound else report.faults[0]


def _pruned_text(pruned: Pruned) -> str:
    windows = ", ".join(f"{count} by {reason}" for reason, count in pruned.windows.items() if count)
    if not pruned.requests:
        return "within the limits"
    return f"{pruned.requests} requests deleted (windows: {windows or 'none'}), {pruned.freed_bytes} bytes given back"
