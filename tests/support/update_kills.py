"""kill -9 of the whole daemon at random moments of its updates, again and again on one state folder."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.daemons import tiny_flags
from support.forked import SERVING, Forge, ForkedProcess
from support.kills import read_rows

from policy_store import PolicyStore, StoreError
from respsd_client import Client, ServiceError

LEARNING = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_CONTROL__PERSISTENCE": "2",
    "RESPSD_EXPLORATION__SHARE": "1",
    "RESPSD_LEARNING__INTERVAL_SECONDS": "3600",  # updates run when they are asked for
    "RESPSD_LEARNING__BATCH_SIZE": "16",
    "RESPSD_LEARNING__MIN_EFFECTIVE_SHARE": "0",
    "RESPSD_LEARNING__MAX_LOG_RATIO": "50",
    "RESPSD_LEARNING__MAX_KL": "1000",
    "RESPSD_LEARNING__MIN_HELD_OUT_WINDOWS": "1",
    "RESPSD_LEARNING__TIME_LIMIT_SECONDS": "3600",
}
REQUEST = {"prompt": "the cat sat on", "max_new_tokens": 60, "ignore_eos": True}


@dataclass
class UpdateKillReport:
    """What the kills left."""

    moments: Counter[str] = field(default_factory=Counter)
    """Kills: while the update's process ran, as its version appeared, or after it."""
    versions: int = 0
    """Of the store at the end."""
    requests: int = 0
    """Rows of the log at the end."""
    faults: list[str] = field(default_factory=list)


class UpdateKills:
    """Starts, teaches, kills and checks; `run` does it as often as asked for."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._state = folder / "state"
        self._socket = f"unix:{self._state}/respsd.sock"
        self._logs = folder
        self._rng = random.Random(seed)
        self._report = UpdateKillReport()
        self._update_seconds = 0.0

    def run(self, times: int) -> UpdateKillReport:
        """Kill so many daemons; a last one must come up on what they left."""
        with Forge(self._logs, SERVING) as forge:
            for _ in range(times):
                self._one(forge.serve(self._state, tiny_flags(), LEARNING))
            last = forge.serve(self._state, tiny_flags(), LEARNING)
            self._check(last)
            last.kill()
        self._report.requests = len(read_rows(self._state / "transitions.db"))
        return self._report

    def _one(self, daemon: ForkedProcess) -> None:
        daemon.ready()
        with Client(self._socket) as client:
            self._check(daemon)
            before = self._stored()
            _start_update(client)
            if not self._update_seconds:
                self._measure(daemon)
                before = self._stored()
                _start_update(client)
            committed = read_rows(self._state / "transitions.db")
            self._wait_for_the_moment(daemon, before)
            running = bool(daemon.children())
            appeared = self._stored() - before
            daemon.kill()
        self._report.moments["running" if running and not appeared else "storing" if appeared else "over"] += 1
        left = read_rows(self._state / "transitions.db")
        if lost := committed.items() - left.items():
            self._fault(f"lost: {sorted(lost)[:3]}")
        if halves := [row for row in left.values() if row[1] != row[2]]:
            self._fault(f"half written: {halves[:3]}")

    def _measure(self, daemon: ForkedProcess) -> None:
        """How long an update takes here."""
        began = time.monotonic()
        while not daemon.said("learner_update"):
            time.sleep(0.05)
        self._update_seconds = time.monotonic() - began

    def _wait_for_the_moment(self, daemon: ForkedProcess, before: set[str]) -> None:
        """Anywhere in the update, or right behind the first sign of its version."""
        if self._rng.random() < 0.5:
            time.sleep(self._rng.uniform(0.0, 1.05 * self._update_seconds))
            return
        updates = len(daemon.said("learner_update"))
        while self._stored() == before and len(daemon.said("learner_update")) == updates:
            time.sleep(0.001)
        time.sleep(self._rng.choice((0.0, self._rng.uniform(0.0, 0.1))))

    def _check(self, daemon: ForkedProcess) -> None:
        """It serves a champion that verifies, and whatever is listed is whole."""
        daemon.ready()
        with Client(self._socket) as client:
            client.generate(**REQUEST)
            serving = client.status().policies["champion"]
            notices = client.status().notices
        with PolicyStore(self._state / "policies", read_only=True) as store:
            listed = [each.version for each in store.list()]
            if serving != store.aliases()["champion"]:
                self._fault(f"version {serving} serves in place of the champion {store.aliases()['champion']}")
            for version in listed:
                try:
                    store.load(version)
                except StoreError as fault:
                    self._fault(f"listed and not whole: {fault}")
        left = self._stored() - {str(version) for version in listed} - {".aside"}
        if left or notices:
            self._fault(f"left behind: {left}, put right: {notices}")
        self._report.versions = len(listed)

    def _stored(self) -> set[str]:
        folder = self._state / "policies" / "versions"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def _fault(self, text: str) -> None:
        self._report.faults.append(f"after kill {self._report.moments.total()}: {text}")


def _start_update(client: Client) -> None:
    """Requests until there is enough to learn from."""
    while True:
        for _ in range(2):
            client.generate(**REQUEST)
        try:
            client.train_now()
        except ServiceError as refused:
            if "new explorer windows" not in refused.message and "not open yet" not in refused.message:
                raise
        else:
            return
