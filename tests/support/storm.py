"""Everything at once on one state folder: requests, an update-like job, retention and the command line."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from policy_store import ManifestDraft, PolicyStore
from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder, RecorderSettings, RecorderStatus
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.retention import Limits, prune
from respsd.experience.rows import Origin

CLIENTS = 3
KEPT_WINDOWS = 300
"""So few that retention always has something to delete."""
_MOST_PENDING = 4000
PATIENCE_SECONDS = 400.0
_COMMANDS = (
    ("db", "prune", "--max-rows", str(2 * KEPT_WINDOWS), "--yes", "-o", "json"),
    ("db", "migrate"),
    ("db", "check"),
    ("db", "backup", "--keep", "2"),
    ("db", "export", "--arm", "learner"),
    ("policy", "list"),
)
_SHAPE = Action(16, 4, 4)


@dataclass
class StormReport:
    """What was done and what went wrong."""

    recorder: RecorderStatus | None = None
    offered: int = 0
    """Requests that the clients handed over."""
    deleted: int = 0
    """Requests that retention, or the command line, deleted."""
    updates: int = 0
    read: int = 0
    """Windows that the updates read."""
    commands: dict[str, float] = field(default_factory=dict)
    """The longest that each took, in seconds."""
    faults: list[str] = field(default_factory=list)


class Storm:
    """Runs it for some seconds."""

    def __init__(self, state: Path, seconds: float) -> None:
        self._state = state
        self._log = state / "transitions.db"
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._report = StormReport()

    def run(self) -> StormReport:
        with PolicyStore(self._state / "policies") as store:
            recorder = Recorder(
                lambda: open_log(self._log),
                Origin("h", "i", "t", None, "float32", "cpu", "hash"),
                settings=RecorderSettings(batch_seconds=0.01),
            )
            first = store.create(_draft(), actor="storm")
            store.set_alias("learner", first, actor="storm", reason="")
            recorder.record(_request("first"), [_window(0)])
            assert recorder.flush(60)
            work: list[Callable[[], None]] = [
                *(lambda client=client: self._client(recorder, client) for client in range(CLIENTS)),  # type: ignore[misc]
                lambda: self._updates(store),
                lambda: self._retention(recorder),
                self._commands,
            ]
            threads = [threading.Thread(target=self._watched, args=(each,)) for each in work]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not recorder.close(60):
                self._report.faults.append("the recorder could not write everything")
            self._report.recorder = recorder.status()
        self._report.offered += 1
        return self._report

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as fault:  # the report has them
            self._fault(f"{type(fault).__name__}: {fault}")

    def _client(self, recorder: Recorder, client: int) -> None:
        number = 0
        while self._goes_on():
            if recorder.status().pending_rows > _MOST_PENDING:  # as fast as the disk, and no faster
                time.sleep(0.01)
                continue
            if recorder.record(_request(f"{client}-{number}"), [_window(each) for each in range(6)]):
                with self._lock:
                    self._report.offered += 1
            number += 1
            time.sleep(0.01)

    def _updates(self, store: PolicyStore) -> None:
        """Read what is new in another process, as the trainer does, then publish a version."""
        seen = 0
        while self._goes_on():
            done = subprocess.run(
                [sys.executable, "-c", _READER, str(self._log), str(seen)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                self._fault(done.stderr)
                continue
            windows, seen = map(int, done.stdout.split())
            version = store.create(_draft(), actor="storm", reason=f"{windows} windows")
            store.set_alias("learner", version, actor="storm", reason="")
            self._report.updates += 1
            self._report.read += windows

    def _retention(self, recorder: Recorder) -> None:
        while self._goes_on():
            pruned = prune(
                self._log,
                Limits(windows=KEPT_WINDOWS),
                chunk_rows=500,
                take_turn=lambda write: recorder.between_batches(write, 60.0),
            )
            with self._lock:
                self._report.deleted += pruned.requests

    def _commands(self) -> None:
        import json

        while self._goes_on():
            for command in _COMMANDS:
                arguments = [sys.executable, "-m", "respsd", *command, "--state-dir", str(self._state)]
                began = time.monotonic()
                done = subprocess.run(arguments, capture_output=True, text=True, check=False)
                name, seconds = " ".join(command[:2]), round(time.monotonic() - began, 1)
                self._report.commands[name] = max(seconds, self._report.commands.get(name, 0.0))
                if done.returncode or "locked" in done.stderr + done.stdout:
                    self._fault(f"{command} ended with {done.returncode}: {done.stderr}")
                elif command[1] == "prune":
                    with self._lock:
                        self._report.deleted += json.loads(done.stdout)["requests"]
                if not self._goes_on():
                    return

    def _goes_on(self) -> bool:
        """Until the time is over, and on a slow machine until everything has happened once."""
        report, late = self._report, time.monotonic() - self._until
        happened = report.updates and report.deleted and len(report.commands) == len(_COMMANDS)
        return late < 0 or (late < PATIENCE_SECONDS and not happened and not report.faults)

    def _fault(self, text: str) -> None:
        with self._lock:
            self._report.faults.append(text)


def whole_requests(log: Path) -> tuple[int, int]:
    """Requests in the log, and those that do not have all their windows."""
    with closing(sqlite3.connect(log)) as connection:
        (requests,) = connection.execute("SELECT count(*) FROM requests").fetchone()
        partial = connection.execute(
            "SELECT count(*) FROM requests r WHERE request_id != 'first' "
            "AND (SELECT count(*) FROM transitions t WHERE t.request_row = r.id) != 6"
        ).fetchone()[0]
    return requests, partial


_READER = """
import sys, time
from pathlib import Path
from sqlalchemy import select
from respsd.experience.database import open_log_for_reading
from respsd.experience.models import TransitionRow
engine = open_log_for_reading(Path(sys.argv[1]))
with engine.begin() as connection:
    query = select(TransitionRow.id, TransitionRow.observation).where(TransitionRow.id > int(sys.argv[2]))
    rows = connection.execute(query).all()
    time.sleep(0.2)  # holds its snapshot while others write and delete
print(len(rows), max((row.id for row in rows), default=int(sys.argv[2])))
"""


def _draft() -> ManifestDraft:
    return ManifestDraft(kind="static", action=(16, 4, 4), action_table=((16, 4, 4),))


def _request(request_id: str) -> RequestRecord:
    now = time.time_ns()
    return RequestRecord(request_id, now, now, 9, 30, "eos", 0.0, 1.0, 0, 1, 10, 150, 20, 0, 0, 1, 1, 1)


def _window(number: int) -> TransitionRecord:
    decision = Decision(_SHAPE, -1.0, "champion", 1, 0, "table")
    return TransitionRecord(
        number, time.time_ns(), bytes(900), "schema", decision, _SHAPE, 0, 10, 150, 20, 30, 0, 10**9, 0, 9, 1.0,
        truncated=False,
    )  # fmt: skip
