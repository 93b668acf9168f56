from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from respsd.errors import StorageError
from respsd.experience import database
from respsd.experience.database import open_log, open_log_for_reading

NOON = 1_796_040_000_250_000_000


def test_a_new_log_is_set_up_for_one_writer(path: Path) -> None:
    engine = open_log(path).engine
    with engine.begin() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("auto_vacuum", "journal_mode", "synchronous", "foreign_keys")
        }
    engine.dispose()
    assert settings == {"auto_vacuum": 2, "journal_mode": "wal", "synchronous": 1, "foreign_keys": 1}


def test_a_file_that_is_no_database_is_moved_aside_with_its_companions(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rubbish" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(suffix.encode())
    opened = open_log(path, lambda: NOON)
    opened.engine.dispose()
    aside = path.with_name("transitions.db.damaged-20261130T120000.250000Z")
    assert opened.moved_aside == aside
    assert aside.read_bytes() == b"rubbish" * 1000
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM transitions").fetchone() == (0,)


def test_a_database_with_a_damaged_page_is_moved_aside(path: Path) -> None:
    open_log(path).engine.dispose()
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)
    opened = open_log(path, lambda: NOON)
    opened.engine.dispose()
    assert opened.moved_aside is not None
    assert opened.moved_aside.read_bytes() == bytes(data)


def test_an_empty_file_is_a_new_log(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    opened = open_log(path)
    opened.engine.dispose()
    assert opened.moved_aside is None


def test_a_log_that_is_only_locked_is_not_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_log(path).engine.dispose()
    monkeypatch.setattr("policy_store.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="locked"):
        open_log(path)
    holder.close()
    open_log(path).engine.dispose()
    assert [file.name for file in path.parent.iterdir()] == ["transitions.db"]


def test_the_check_of_a_big_file_is_cut_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_log(path).engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE big (x)")
        connection.exec_driver_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            "INSERT INTO big SELECT hex(randomblob(20)) FROM n"
        )
    engine.dispose()
    monkeypatch.setattr(database, "QUICK_CHECK_SECONDS", -1.0)
    monkeypatch.setattr(database, "_INSTRUCTIONS_BETWEEN_LOOKS", 10)
    opened = open_log(path)
    with opened.engine.begin() as connection:  # the connection is whole again afterwards
        assert connection.exec_driver_sql("SELECT count(*) FROM big").scalar_one() == 20000
    opened.engine.dispose()
    assert opened.moved_aside is None


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        open_log(tmp_path / "file" / "transitions.db")


def test_reading_needs_a_log_and_makes_none(path: Path) -> None:
    with pytest.raises(StorageError, match="no experience log"):
        open_log_for_reading(path)
    assert not path.parent.exists()
