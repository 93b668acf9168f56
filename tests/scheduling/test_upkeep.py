from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.recorders import NOON

from policy_store import PolicyStore
from policy_store.sqlite import writer_engine
from respsd.control.action import OFF
from respsd.control.manifests import static_manifest
from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience.database import FileId, file_id, open_log
from respsd.experience.retention import Limits, Reason
from respsd.experience.snapshot import backups_of
from respsd.scheduling.upkeep import Backups, Checks, Retention, Versions

GO_ON = threading.Event()


class Observer:
    def __init__(self) -> None:
        self.deleted: Counter[str] = Counter()
        self.sizes: list[tuple[int, int]] = []

    def windows_deleted(self, windows: Mapping[Reason, int]) -> None:
        self.deleted.update(windows)

    def log_measured(self, size_bytes: int, unreturned_bytes: int) -> None:
        self.sizes.append((size_bytes, unreturned_bytes))


class Alarms:
    """Who is told of damage."""

    def __init__(self) -> None:
        self.log: list[tuple[str, FileId]] = []
        self.registry: list[str | None] = []

    def log_damaged(self, fault: str, file: FileId) -> None:
        self.log.append((fault, file))

    def registry_checked(self, fault: str | None) -> None:
        self.registry.append(fault)


@pytest.fixture
def alarms() -> Alarms:
    return Alarms()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "transitions.db"
    open_log(path).engine.dispose()
    return path


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    PolicyStore(tmp_path / "policies").close()
    return tmp_path / "policies" / "registry.db"


def ruin(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def retention(path: Path, alarms: Alarms, observer: Observer) -> Retention:
    engine = writer_engine(path, synchronous="NORMAL")
    return Retention(path, lambda: Limits(windows=1), 10, lambda write: write(engine), observer, alarms.log_damaged)


def test_retention_measures_and_says_what_it_did(log: Path, alarms: Alarms) -> None:
    observer = Observer()
    outcome = retention(log, alarms, observer)(GO_ON)
    assert (outcome.verdict, outcome.detail) == ("done", "within the limits")
    assert observer.sizes == [(log.stat().st_size, 0)]


def test_retention_waits_for_a_log(tmp_path: Path, alarms: Alarms) -> None:
    outcome = retention(tmp_path / "transitions.db", alarms, Observer())(GO_ON)
    assert outcome.verdict == "skipped"
    assert list(tmp_path.iterdir()) == []


def test_retention_reports_damage(log: Path, alarms: Alarms) -> None:
    ruin(log)
    with pytest.raises(DatabaseDamaged):
        retention(log, alarms, Observer())(GO_ON)
    [(fault, file)] = alarms.log
    assert "malformed" in fault
    assert file == file_id(log)


def test_backups_take_every_database_that_is_there(log: Path, registry: Path, tmp_path: Path) -> None:
    job = Backups((registry, log, tmp_path / "none.db"), tmp_path / "backups", 2, lambda: NOON)
    outcome = job(GO_ON)
    assert outcome.detail == "registry-20261130T120000.000000Z.db, transitions-20261130T120000.000000Z.db"
    assert job(GO_ON).detail == "registry.db unchanged, transitions.db unchanged"


def test_a_backup_that_fails_does_not_keep_the_others_from_theirs(log: Path, registry: Path, tmp_path: Path) -> None:
    ruin(registry)
    with pytest.raises(StorageError, match=r"registry\.db"):
        Backups((registry, log), tmp_path / "backups", 2, lambda: NOON)(GO_ON)
    assert len(backups_of(log, tmp_path / "backups")) == 1


def test_without_a_database_there_is_nothing_to_do(tmp_path: Path, alarms: Alarms) -> None:
    missing = tmp_path / "none.db"
    assert Backups((missing,), tmp_path / "backups", 2, lambda: NOON)(GO_ON).verdict == "skipped"
    assert Checks(missing, missing, alarms.log_damaged, alarms.registry_checked)(GO_ON).verdict == "skipped"


def test_a_look_at_sound_files_clears_the_alarm(log: Path, registry: Path, alarms: Alarms) -> None:
    outcome = Checks(log, registry, alarms.log_damaged, alarms.registry_checked)(GO_ON)
    assert outcome.detail == "registry.db is sound, transitions.db is sound"
    assert (alarms.log, alarms.registry) == ([], [None])


def test_damage_is_told_to_those_whom_it_concerns(log: Path, registry: Path, alarms: Alarms) -> None:
    checks = Checks(log, registry, alarms.log_damaged, alarms.registry_checked)
    ruin(log)
    with pytest.raises(DatabaseDamaged, match=r"transitions\.db"):
        checks(GO_ON)
    assert [file for _, file in alarms.log] == [file_id(log)]
    assert alarms.registry == [None]
    ruin(registry)
    with pytest.raises(DatabaseDamaged, match=r"registry\.db"):
        checks(GO_ON)
    assert alarms.registry[-1] is not None


def test_old_versions_go_and_what_serves_stays(tmp_path: Path) -> None:
    with PolicyStore(tmp_path) as store:
        for _ in range(6):
            store.create(static_manifest(OFF, code_version="test", note="one of many"), actor="test")
        store.set_alias("champion", 2, actor="test", reason="it serves")

        outcome = Versions(store, keep=2)(GO_ON)

        assert outcome.detail == "3 versions removed"
        assert [each.version for each in store.list()] == [2, 5, 6]
        assert Versions(store, keep=2)(GO_ON).detail == "within the limit"
