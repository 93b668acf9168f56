"""Recorders that a test can hold up, and looks into the log that they write."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from respsd.errors import StorageError
from respsd.experience.database import OpenLog, open_log, open_log_for_reading
from respsd.experience.models import RequestRow, TransitionRow
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import RequestRecord, TransitionRecord

NOON = 1_796_040_000_000_000_000
QUICK = RecorderSettings(batch_seconds=0.0, retry_seconds=0.01, retry_seconds_max=0.02)
LONG = 30.0
"""Seconds that a test would wait for the writer's thread if it hung; normally it takes milliseconds."""

MakeRequest = Callable[..., RequestRecord]
MakeWindow = Callable[..., TransitionRecord]
Start = Callable[..., Recorder]


def until(condition: Callable[[], bool]) -> None:
    """Wait for the writer's thread to get somewhere."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gate:
    """Opens the log only when told to: until then the writer's thread stands still, or fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.tries = 0

    def hold(self) -> OpenLog:
        self.reached.set()
        assert self.opened.wait(LONG)
        return open_log(self._path)

    def fail(self) -> OpenLog:
        self.tries += 1
        self.reached.set()
        if not self.opened.is_set():
            raise StorageError("the disk is on fire")
        return open_log(self._path)


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(rows)


def stored(path: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    with open_log_for_reading(path).begin() as connection:
        requests = [dict(row._mapping) for row in connection.execute(select(RequestRow).order_by(RequestRow.id))]
        windows = [dict(row._mapping) for row in connection.execute(select(TransitionRow).order_by(TransitionRow.id))]
    return requests, windows
