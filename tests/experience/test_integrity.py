from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.recorders import LONG, MakeRequest, MakeWindow, Start

from policy_store import PolicyStore
from respsd.errors import StorageError
from respsd.experience import integrity
from respsd.experience.database import file_id, open_log
from respsd.experience.integrity import inspect


@pytest.fixture
def written(path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow) -> Path:
    recorder = start()
    for number in range(30):
        recorder.record(make_request(f"r-{number}"), [make_window(each) for each in range(3)])
    assert recorder.close(LONG)
    return path


def damage(path: Path, pages: slice) -> None:
    data = bytearray(path.read_bytes())
    start, stop = pages.start * 4096, pages.stop * 4096
    data[start:stop] = b"\xff" * (stop - start)
    path.write_bytes(data)


@pytest.mark.parametrize("thorough", [False, True])
def test_a_sound_log_is_described(written: Path, thorough: bool) -> None:
    report = inspect(written, thorough=thorough)
    assert (report.faults, report.is_sound, report.complete, report.gives_back) == ((), True, True, True)
    assert report.rows["requests"] == 30
    assert report.rows["transitions"] == 90
    assert (report.size_bytes, report.wal_bytes, report.free_bytes) == (written.stat().st_size, 0, 0)
    assert (report.file, report.path) == (file_id(written), written)
    assert report.schema is not None
    assert report.schema >= "0001"


def test_looking_leaves_no_trace(written: Path) -> None:
    before = written.read_bytes()
    inspect(written)
    assert [file.name for file in written.parent.iterdir()] == ["transitions.db"]
    assert written.read_bytes() == before


def test_rows_that_are_only_in_the_write_ahead_log_count(
    written: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start()
    recorder.record(make_request("more"), [])
    recorder.flush(LONG)
    report = inspect(written)
    assert report.rows["requests"] == 31
    assert report.wal_bytes > 0


def test_damage_is_found_and_said(written: Path) -> None:
    damage(written, slice(4, 8))
    report = inspect(written)
    assert not report.is_sound
    assert report.faults
    assert report.rows == {}


def test_a_file_that_is_no_database_is_damaged(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"rubbish" * 1000)
    assert inspect(path).faults == ("file is not a database",)


def test_a_row_whose_request_is_gone_is_a_fault(written: Path) -> None:
    with closing(sqlite3.connect(written)) as connection:
        connection.execute("DELETE FROM requests WHERE id = 7")
        connection.commit()
    faults = inspect(written).faults
    assert len(faults) == 3
    assert faults[0] == "transitions row 19 refers to a row of requests that is not there"


def test_only_a_thorough_look_compares_indexes(written: Path) -> None:
    with closing(sqlite3.connect(written, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'finished_at_ns)', 'created_at_ns)') "
                           "WHERE name = 'ix_requests_finished_at_ns'")  # fmt: skip
    assert inspect(written).is_sound
    assert not inspect(written, thorough=True).is_sound


def test_the_registry_is_a_database_too(tmp_path: Path) -> None:
    PolicyStore(tmp_path / "policies").close()
    report = inspect(tmp_path / "policies" / "registry.db")
    assert report.is_sound
    assert report.rows["versions"] == 0
    assert report.schema is not None


def test_it_can_be_stopped(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_INSTRUCTIONS_BETWEEN_LOOKS", 1)
    stop = threading.Event()
    stop.set()
    assert not inspect(written, stop=stop).complete


def test_an_old_file_says_that_it_keeps_its_free_pages(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert not inspect(path).gives_back


def test_a_missing_or_unreadable_file_is_a_storage_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such database"):
        inspect(path)
    open_log(path).engine.dispose()
    with pytest.raises(StorageError):
        inspect(tmp_path)  # a folder
