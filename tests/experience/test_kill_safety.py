from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from respsd.experience.database import open_log

SCRIPT = """
import itertools, pathlib, sys
from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin

path = pathlib.Path(sys.argv[1])
recorder = Recorder(
    lambda: open_log(path),
    Origin("box", "run", "target", None, "float32", "cpu", "hash"),
    settings=RecorderSettings(batch_seconds=0.0),
)
window = lambda n: TransitionRecord(
    n, 1, bytes(4000), "schema", Decision(Action(16, 4, 4), -1.0, "learner", 2, 3, "table"), Action(16, 4, 4),
    0, 10, 150, 21, 31, 1, 2, 3, 100, 1.0, False,
)
for n in itertools.count():
    recorder.record(
        RequestRecord(str(n), 1, 2, 3, 4, "eos", 0.0, 1.0, 0, 5, 6, 7, 8, 9, 10, 11, 1, 1),
        [window(w) for w in range(4)],
    )
    if n % 5 == 4:
        recorder.flush(60.0)
        print(n + 1, flush=True)
"""


@pytest.mark.parametrize("flushes", [1, 4])
def test_a_daemon_killed_while_it_writes_loses_no_committed_row(tmp_path: Path, flushes: int) -> None:
    path = tmp_path / "transitions.db"
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(flushes):
            committed = int(process.stdout.readline())
        process.kill()
    opened = open_log(path)  # as the next daemon does
    opened.engine.dispose()
    assert opened.moved_aside is None
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        (requests,) = connection.execute("SELECT count(*) FROM requests").fetchone()
        partial = connection.execute(
            "SELECT request_row FROM transitions GROUP BY request_row HAVING count(*) != 4"
        ).fetchall()
        (windows,) = connection.execute("SELECT count(*) FROM transitions").fetchone()
    assert requests >= committed
    assert partial == []
    assert windows == 4 * requests
