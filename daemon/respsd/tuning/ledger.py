"""updates.jsonl: every update that ran and what became of it, one JSON document a line. It only grows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from respsd.clock import Clock
from respsd.errors import StorageError
from respsd.tuning.report import UpdateReport

FILE = "updates.jsonl"


class UpdateLedger:
    """The record of a state folder's updates; one process writes it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def append(self, report: UpdateReport) -> None:
        """Record an update, durably. Raises StorageError."""
        line = json.dumps({"at_ns": self._clock.time_ns(), **report.to_dict()}, allow_nan=False) + "\n"
        try:
            torn = self._path.exists() and self._path.stat().st_size and self._last_byte() != b"\n"
            with self._path.open("ab") as file:
                file.write(b"\n" * bool(torn) + line.encode())  # a line that a crash cut short stays by itself
                file.flush()
                os.fsync(file.fileno())
        except OSError as fault:
            raise StorageError(f"{self._path}: {fault.strerror}") from fault

    def read(self) -> list[Mapping[str, object]]:
        """Every update, oldest first; lines that a crash cut short are passed over. Raises StorageError."""
        try:
            text = self._path.read_text() if self._path.exists() else ""
        except OSError as fault:
            raise StorageError(f"{self._path}: {fault.strerror}") from fault
        return [entry for line in text.splitlines() if (entry := _parsed(line)) is not None]

    def _last_byte(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)


def _parsed(line: str) -> Mapping[str, object] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
