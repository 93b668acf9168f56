"""kill -9 at random moments while rows are written, updates publish versions, and upkeep runs.

The process is the daemon's storage side alone (recorder, store, schedule), in which updates follow each other without a
pause; `test_update_killed` has the whole daemon. `RESPSD_TEST_STORAGE_KILLS=30` kills it thirty times.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from policy_store import PolicyStore
from respsd.experience.database import open_log
from respsd.experience.integrity import inspect

KILLS = int(os.environ.get("RESPSD_TEST_STORAGE_KILLS", "8"))
MOST_SECONDS = 0.6
"""Between the first update and the kill."""
SCRIPT = """
import itertools, os, structlog, sys
from pathlib import Path
from prometheus_client import CollectorRegistry
from policy_store import ManifestDraft, PolicyStore
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin
from respsd.scheduling.assembly import BACKUP, CHECK, DaemonSchedule, Parts
from respsd.scheduling.update_job import UpdateSummary
from respsd.settings import Settings
from respsd.settings_learning import LearningSettings, RetentionSettings

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
say = lambda line: os.write(1, (line + "\\n").encode())  # whole lines, whatever thread they come from
state = Path(sys.argv[1])
store = PolicyStore(state / "policies")
recorder = Recorder(
    lambda: open_log(state / "transitions.db"),
    Origin("box", "run", "target", None, "float32", "cpu", "hash"),
    settings=RecorderSettings(batch_seconds=0.0),
)

class Update:
    def new_windows(self):
        return 64
    def run(self, stop):
        draft = ManifestDraft(kind="static", action=(16, 4, 4), action_table=((16, 4, 4),))
        version = store.create(draft, actor="update")
        store.set_alias("champion", version, actor="update", reason="")
        say(f"version {version}")
        return UpdateSummary(version, "")

learning = LearningSettings(interval_seconds=0.01, min_new_windows=2)
settings = Settings(state_dir=state, learning=learning, retention=RetentionSettings(interval_seconds=0.05))
schedule = DaemonSchedule(settings, Parts(store, recorder, CollectorRegistry(), SystemClock(), Update()))
schedule.start()
for upkeep in (BACKUP, CHECK):
    schedule.run_now(upkeep)
window = lambda n: TransitionRecord(
    n, 1, bytes(4000), "schema", Decision(Action(16, 4, 4), -1.0, "learner", 2, 3, "table"), Action(16, 4, 4),
    0, 10, 150, 21, 31, 1, 2, 3, 100, 1.0, False,
)
now = SystemClock().time_ns
for n in itertools.count():
    at = now()
    recorder.record(
        RequestRecord(sys.argv[2] + "-" + str(n), at, at, 3, 4, "eos", 0.0, 1.0, 0, 5, 6, 7, 8, 9, 10, 11, 1, 1),
        [window(w) for w in range(4)],
    )
    if recorder.flush(60.0):
        say(f"committed {n + 1}")
"""


def committed_before_kill(state: Path, run: int, seconds: float) -> tuple[int, int]:
    """Let a process work and kill it; the requests and the newest version that it said were committed."""
    command = [sys.executable, "-c", SCRIPT, str(state), str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said: dict[str, int] = {}
        while len(said) < 2:  # it writes and it publishes
            line = process.stdout.readline()
            assert line, "it ended by itself"
            said.update([_parsed(line)])
        time.sleep(seconds)
        process.kill()
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                said.update([_parsed(line)])
    return said["committed"], said["version"]


def _parsed(line: str) -> tuple[str, int]:
    word, number = line.split()
    return word, int(number)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a process starts thirty times, which a busy machine takes its time for
def test_killed_at_random_moments_it_starts_again_on_a_version_that_verifies_with_every_committed_row(
    tmp_path: Path,
) -> None:
    rng = random.Random(20261129)
    committed: list[int] = []
    for run in range(KILLS):
        requests, version = committed_before_kill(tmp_path, run, rng.uniform(0.0, MOST_SECONDS))
        committed.append(requests)
        opened = open_log(tmp_path / "transitions.db")  # as the next daemon does
        opened.engine.dispose()
        assert opened.moved_aside is None
        with PolicyStore(tmp_path / "policies") as store:
            assert store.resolve("champion") >= version - 1
            assert store.load("champion").manifest.version == store.resolve("champion")
            listed = [each.version for each in store.list()]
            assert listed == list(range(1, len(listed) + 1))
            assert listed[-1] >= version
            for each in listed[-5:]:
                store.load(each)
        folders = {path.name for path in (tmp_path / "policies" / "versions").iterdir() if path.name != ".aside"}
        assert folders == {str(each) for each in listed}
    assert inspect(tmp_path / "transitions.db", thorough=True).faults == ()
    assert inspect(tmp_path / "policies" / "registry.db", thorough=True).faults == ()
    with closing(sqlite3.connect(tmp_path / "transitions.db")) as connection:
        found = dict(
            connection.execute(
                "SELECT CAST(substr(request_id, 1, instr(request_id, '-') - 1) AS INTEGER) AS run, count(*) "
                "FROM requests GROUP BY run"
            ).fetchall()
        )
        partial = connection.execute(
            "SELECT request_row FROM transitions GROUP BY request_row HAVING count(*) != 4"
        ).fetchall()
        (windows,) = connection.execute("SELECT count(*) FROM transitions").fetchone()
    assert [found[run] >= requests for run, requests in enumerate(committed)] == [True] * KILLS
    assert partial == []
    assert windows == 4 * sum(found.values())
    print(f"{KILLS} kills, {sum(found.values())} requests, {len(listed)} versions")  # noqa: T201
