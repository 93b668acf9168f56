"""What the recorder does about a log that is damaged or taken away under it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.recorders import LONG, Gate, MakeRequest, MakeWindow, Start, count, stored, until

from respsd.experience import database
from respsd.experience.database import file_id


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir() if ".damaged-" in file.name)


def test_damage_that_the_short_check_misses_is_still_set_aside(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_quick_check", lambda _: None)  # as of a file too big to check at once
    recorder = start()
    recorder.record(make_request("lost"), [make_window()])
    recorder.flush(LONG)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    recorder.record(make_request("kept"), [make_window()])
    assert recorder.flush(LONG)
    assert recorder.status().state == "ok"
    assert [row["request_id"] for row in stored(path)[0]] == ["kept"]
    assert recorder.status().moved_aside is not None
    assert recorder.status().moved_aside.read_bytes()[4096:8192] == b"\xff" * 4096


def test_a_report_of_damage_has_the_log_set_aside_without_a_request(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start()
    recorder.record(make_request("old"), [])
    recorder.flush(LONG)
    identity = file_id(path)
    assert identity is not None
    recorder.report_damage("page 7 is broken", identity)
    until(lambda: recorder.status().moved_aside is not None and recorder.status().state == "ok")
    assert len(names(path)) >= 1
    assert count(path, "requests") == 0
    recorder.record(make_request("new"), [])
    assert recorder.flush(LONG)
    assert count(path, "requests") == 1


def test_a_report_about_a_file_that_is_already_gone_costs_the_new_one_nothing(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start()
    recorder.record(make_request("kept"), [])
    recorder.flush(LONG)
    recorder.report_damage("page 7 was broken", (1, 2))
    until(lambda: recorder.status().state == "ok")
    assert recorder.status().moved_aside is None
    assert count(path, "requests") == 1


def test_a_log_that_is_deleted_or_moved_away_is_begun_anew(path: Path, start: Start, make_request: MakeRequest) -> None:
    recorder = start()
    recorder.record(make_request("away"), [])
    recorder.flush(LONG)
    for file in list(path.parent.iterdir()):
        file.rename(path.parent / f"old-{file.name}")
    recorder.record(make_request("kept"), [])
    assert recorder.flush(LONG)
    assert [row["request_id"] for row in stored(path)[0]] == ["kept"]
    assert recorder.status().state == "ok"


def test_the_log_can_be_opened_before_the_first_request(path: Path, start: Start) -> None:
    recorder = start()
    recorder.prepare()
    until(path.exists)
    until(lambda: recorder.status().state == "ok")
    assert recorder.close(LONG)
    assert count(path, "requests") == 0


def test_a_log_that_cannot_be_opened_is_known_before_the_first_request(path: Path, start: Start) -> None:
    gate = Gate(path)
    recorder = start(opener=gate.fail)
    recorder.prepare()
    until(lambda: recorder.status().state == "degraded")
    assert recorder.status().reason == "the disk is on fire"
    gate.opened.set()
    until(lambda: recorder.status().state == "ok")
    assert path.exists()
