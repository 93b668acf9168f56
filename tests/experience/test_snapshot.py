from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.recorders import LONG, NOON, MakeRequest, MakeWindow, Start, count, until

from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience import snapshot
from respsd.experience.snapshot import Backup, BackupStopped, age_seconds, back_up, backups_of

SECOND = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def take(source: Path, folder: Path, second: int = 0, keep: int = 3) -> Backup:
    return back_up(source, folder, keep=keep, clock=lambda: NOON + second * SECOND)


@pytest.fixture
def written(path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow) -> Path:
    recorder = start()
    for number in range(20):
        recorder.record(make_request(f"r-{number}"), [make_window(each) for each in range(3)])
    assert recorder.flush(LONG)
    return path


def test_a_backup_is_one_whole_file_of_the_committed_rows(written: Path, folder: Path) -> None:
    backup = take(written, folder)
    assert backup == Backup(folder / "transitions-20261130T120000.000000Z.db", backup.path.stat().st_size, is_new=True)
    assert [file.name for file in folder.iterdir()] == [backup.path.name]
    with closing(sqlite3.connect(backup.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert (count(backup.path, "requests"), count(backup.path, "transitions")) == (20, 60)


def test_a_backup_is_one_moment_though_others_write_all_the_while(
    written: Path,
    folder: Path,
    start: Start,
    make_request: MakeRequest,
    make_window: MakeWindow,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "_PAGES", 1)  # many steps, between which the file changes
    recorder, done = start(), threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            recorder.record(make_request(f"new-{number}"), [make_window(each) for each in range(3)])
            recorder.flush(LONG)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    backups: list[Backup] = []
    for second in range(3):
        before = recorder.status().written_requests
        until(lambda before=before: recorder.status().written_requests > before)  # type: ignore[misc]
        backups.append(take(written, folder, second, keep=10))
    done.set()
    writer.join()
    assert all(backup.is_new for backup in backups)
    for backup in backups:
        assert count(backup.path, "transitions") == 3 * count(backup.path, "requests")
    assert recorder.status().state == "ok"


def test_a_backup_opens_as_a_log_again(written: Path, folder: Path, start: Start, make_request: MakeRequest) -> None:
    backup = take(written, folder)
    shutil.copy(backup.path, written.with_name("restored.db"))
    from respsd.experience.database import open_log

    opened = open_log(written.with_name("restored.db"))
    with opened.engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM requests").scalar_one() == 20
        assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() == 2
    opened.engine.dispose()


def test_only_the_newest_stay_and_other_files_are_left_alone(
    written: Path, folder: Path, start: Start, make_request: MakeRequest
) -> None:
    folder.mkdir()
    (folder / "transitions-notes.db").touch()
    (folder / "registry-20200101T000000.000000Z.db").touch()
    recorder = start()
    for second in range(4):
        recorder.record(make_request(f"more-{second}"), [])
        recorder.flush(LONG)
        last = take(written, folder, second, keep=2)
    names = [backup.name for backup in backups_of(written, folder)]
    assert names == ["transitions-20261130T120002.000000Z.db", "transitions-20261130T120003.000000Z.db"]
    assert [path.name for path in last.removed] == ["transitions-20261130T120001.000000Z.db"]
    assert (folder / "transitions-notes.db").exists()
    assert (folder / "registry-20200101T000000.000000Z.db").exists()


def test_after_the_clock_was_set_back_new_backups_still_come_last_and_the_oldest_go(
    written: Path, folder: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start()
    made = []
    for number, second in enumerate((7200, 7201, 0, 1)):
        recorder.record(make_request(f"more-{number}"), [])
        recorder.flush(LONG)
        made.append(take(written, folder, second, keep=2).path)
    assert backups_of(written, folder) == made[2:]
    assert [path.name for path in made[1:]] == [f"transitions-20261130T140001.{micros:06}Z.db" for micros in range(3)]


def test_a_file_that_did_not_change_is_not_copied_again(written: Path, folder: Path) -> None:
    first = take(written, folder)
    again = take(written, folder, 60)
    assert (again.path, again.is_new) == (first.path, False)
    assert backups_of(written, folder) == [first.path]


def test_a_damaged_file_gives_no_backup_and_costs_none(
    written: Path, folder: Path, start: Start, make_request: MakeRequest
) -> None:
    good = take(written, folder)
    assert start().close(LONG)
    copy = written.with_name("transitions.db")
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(copy.read_bytes())
    data[5 * 4096 : 8 * 4096] = b"\xff" * (3 * 4096)
    damaged = written.parent / "damaged" / "transitions.db"
    damaged.parent.mkdir()
    damaged.write_bytes(data)
    with pytest.raises(DatabaseDamaged):
        take(damaged, folder, 60, keep=1)
    assert list(folder.iterdir()) == [good.path]


def test_a_stopped_backup_leaves_nothing(written: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_PAGES", 1)
    stop = threading.Event()
    stop.set()
    with pytest.raises(BackupStopped):
        back_up(written, folder, keep=1, stop=stop)
    assert list(folder.iterdir()) == []


def test_what_a_killed_backup_left_is_cleaned_up_and_a_running_one_is_not(written: Path, folder: Path) -> None:
    folder.mkdir()
    dead, alive = folder / ".tmp-transitions-999999999-x.db", folder / f".tmp-transitions-{os.getppid()}-x.db"
    dead.touch()
    alive.touch()
    take(written, folder)
    assert (dead.exists(), alive.exists()) == (False, True)


def test_a_full_disk_is_left_to_others(written: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="has 10 free"):
        take(written, folder)
    assert list(folder.iterdir()) == []


def test_without_a_database_there_is_no_backup(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StorageError, match="no such database"):
        take(tmp_path / "none.db", folder)
    assert not folder.exists()


def test_the_age_is_the_newest_ones(written: Path, folder: Path) -> None:
    assert age_seconds(written, folder) is None
    backup = take(written, folder)
    os.utime(backup.path, (NOON / 1e9 - 90, NOON / 1e9 - 90))
    assert age_seconds(written, folder, lambda: NOON) == pytest.approx(90)


def test_a_backup_from_the_future_has_no_age(written: Path, folder: Path) -> None:
    backup = take(written, folder)
    os.utime(backup.path, (NOON / 1e9 + 7200, NOON / 1e9 + 7200))
    assert age_seconds(written, folder, lambda: NOON) is None
