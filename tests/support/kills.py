"""kill -9 of the whole daemon under load, again and again on one state folder."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.daemons import DaemonProcess, respsd, tiny_flags

from respsd_client import Client, ServiceError

CLIENTS = 6
MOST_SECONDS = 2.0
"""From the first rows of a run to its kill."""
AT_START = 5
"""One run in so many is killed while it still starts."""
BUSY = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_EXPLORATION__SHARE": "0.5",
    "RESPSD_LEARNING__INTERVAL_SECONDS": "0.5",
    "RESPSD_LEARNING__MIN_NEW_WINDOWS": "64",
    "RESPSD_RETENTION__INTERVAL_SECONDS": "1",
    "RESPSD_CONTROL__PERSISTENCE": "4",
}
"""Rows are written, updates start, and upkeep runs, all within the seconds that a run has."""

Rows = dict[int, tuple[str, int, int]]
"""Of each request in the log, by its key: request id, steps, and steps of its windows."""


@dataclass
class KillReport:
    """What the kills left."""

    kills: int = 0
    kills_at_start: int = 0
    rows: int = 0
    """Windows in the log at the end."""
    requests: int = 0
    ready_seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Kills:
    """Starts, loads, kills and checks; `run` does it as often as asked for."""

    def __init__(self, state: Path, seed: int) -> None:
        self._state = state
        self._log = state / "transitions.db"
        self._rng = random.Random(seed)
        self._report = KillReport()

    def run(self, times: int) -> KillReport:
        """Kill so many daemons; a last one that is left alive must be ready and serve."""
        for number in range(times):
            before = read_rows(self._log)
            starting = number % AT_START == AT_START - 1
            committed = self._killed_at_start() if starting else self._killed_under_load()
            self._report.kills += 1
            self._report.kills_at_start += starting
            self._check(before | committed)
        served = self._started()
        with Client(served.address) as client:
            client.generate("the cat", max_new_tokens=3, ignore_eos=True)
        if served.stop():
            self._fault(f"the last daemon ended with {served.process.returncode}")
        rows = read_rows(self._log)
        self._report.requests = len(rows)
        with closing(sqlite3.connect(self._log)) as connection:
            (self._report.rows,) = connection.execute("SELECT count(*) FROM transitions").fetchone()
        return self._report

    def _started(self) -> DaemonProcess:
        began = time.monotonic()
        daemon = DaemonProcess(self._state, *tiny_flags(), environment=BUSY)
        daemon.ready()
        self._report.ready_seconds.append(round(time.monotonic() - began, 1))
        return daemon

    def _killed_at_start(self) -> Rows:
        daemon = DaemonProcess(self._state, *tiny_flags(), environment=BUSY)
        typical = sorted(self._report.ready_seconds)[len(self._report.ready_seconds) // 2]
        time.sleep(self._rng.uniform(0.0, 1.2 * typical))
        _kill(daemon)
        return {}

    def _killed_under_load(self) -> Rows:
        """The rows that another process could read before the kill: those were committed."""
        daemon = self._started()
        known, seen = read_rows(self._log), Rows()
        stopped = threading.Event()
        clients = [threading.Thread(target=_generate, args=(daemon.address, stopped, each)) for each in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            until = time.monotonic() + 60
            while len(seen) <= len(known) and time.monotonic() < until:
                time.sleep(0.01)
                seen = read_rows(self._log)
            if len(seen) <= len(known):
                self._fault("no row was written within a minute")
            until = time.monotonic() + self._rng.uniform(0.0, MOST_SECONDS)
            while time.monotonic() < until:
                seen = read_rows(self._log)
                time.sleep(0.01)
        finally:
            stopped.set()
            _kill(daemon)
            for client in clients:
                client.join()
        return seen

    def _check(self, committed: Rows) -> None:
        """After a kill: sound files by the command that an operator has, every committed row, no half request."""
        checked = json.loads(respsd("db", "check", "--thorough", "--state-dir", str(self._state), "-o", "json"))
        if checked["set_aside"] or {each["state"] for each in checked["databases"]} != {"sound"}:
            self._fault(f"db check: {checked}")
        found = read_rows(self._log)
        if lost := committed.items() - found.items():
            self._fault(f"lost: {sorted(lost)[:3]}")
        if halves := [row for row in found.values() if row[1] != row[2]]:
            self._fault(f"half written: {halves[:3]}")

    def _fault(self, text: str) -> None:
        self._report.faults.append(f"after kill {self._report.kills}: {text}")


def read_rows(log: Path) -> Rows:
    """Every request in a log; none where there is no log, or no table in it yet."""
    if not log.exists():
        return {}
    query = (
        "SELECT r.id, r.request_id, r.steps, coalesce(sum(t.steps), 0) FROM requests r "
        "LEFT JOIN transitions t ON t.request_row = r.id GROUP BY r.id"
    )
    with closing(sqlite3.connect(f"file:{log}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            return {key: (name, steps, sum_) for key, name, steps, sum_ in connection.execute(query)}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise


def _generate(address: str, stopped: threading.Event, number: int) -> None:
    """Requests of many lengths, one after the other, until the daemon is gone."""
    rng = random.Random(number)
    with suppress(ServiceError), Client(address) as client:
        while not stopped.is_set():
            with client.stream("the cat sat on", max_new_tokens=rng.randint(3, 80), ignore_eos=True) as stream:
                for _ in stream:
                    pass


def _kill(daemon: DaemonProcess) -> None:
    daemon.process.kill()
    daemon.wait()
    assert daemon.process.stdout is not None
    daemon.process.stdout.close()
