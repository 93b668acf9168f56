from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import DatabaseError, OperationalError

from policy_store.sqlite import WalUnavailable, _enter_wal, is_corrupt, reader_engine, writer_engine


def test_a_writer_sets_the_file_up_before_its_first_table(tmp_path: Path) -> None:
    engine = writer_engine(tmp_path / "x.db", synchronous="FULL")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in (
                "auto_vacuum",
                "journal_mode",
                "synchronous",
                "foreign_keys",
                "journal_size_limit",
                "temp_store",
            )
        }
    engine.dispose()
    assert pragmas == {
        "auto_vacuum": 2,  # incremental
        "journal_mode": "wal",
        "synchronous": 2,  # full
        "foreign_keys": 1,
        "journal_size_limit": 64 * 1024 * 1024,
        "temp_store": 2,  # memory
    }


def test_a_place_without_write_ahead_log_is_refused() -> None:
    with pytest.raises(WalUnavailable, match="memory"):
        _enter_wal(sqlite3.connect(":memory:"))


def test_a_write_waits_for_nobody_that_has_only_read(tmp_path: Path) -> None:
    """A transaction that reads, then writes, while another wrote in between: deferred BEGIN would fail at once."""
    engine = writer_engine(tmp_path / "x.db", synchronous="NORMAL")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    reader = reader_engine(tmp_path / "x.db")
    with reader.begin() as reading:
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
        with engine.begin() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert reading.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0  # its own snapshot
    engine.dispose()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    engine = writer_engine(tmp_path / "x.db", synchronous="NORMAL")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    for _ in range(2):  # beside a writer, then without one
        with pytest.raises(OperationalError, match="readonly"), reader_engine(tmp_path / "x.db").begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        engine.dispose()


def test_damage_is_told_from_other_faults(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is a text file" * 1000)
    with pytest.raises(DatabaseError) as damaged:
        writer_engine(tmp_path / "x.db", synchronous="NORMAL").connect()
    assert is_corrupt(damaged.value)
    with pytest.raises(OperationalError) as missing:
        reader_engine(tmp_path / "none.db").connect()
    assert not is_corrupt(missing.value)
    assert not is_corrupt(ValueError())
