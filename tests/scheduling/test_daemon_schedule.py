"""A daemon's jobs put together: over a real log and store, with an update that a test controls."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from support.recorders import LONG, QUICK, until

from policy_store import PolicyStore
from respsd.clock import SystemClock
from respsd.control.action import OFF
from respsd.control.manifests import static_manifest
from respsd.control.router import LEARNER
from respsd.errors import ChangeRefused, LearningPaused, UpdateFailed
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder
from respsd.experience.rows import Origin
from respsd.experience.snapshot import back_up
from respsd.scheduling.assembly import BACKUP, CHECK, RETENTION, UPDATE, VERSIONS, DaemonSchedule, Parts
from respsd.scheduling.update_job import UpdateSummary
from respsd.settings import Settings
from respsd.settings_learning import LearningSettings, ScheduleSettings

MakeSchedule = Callable[..., DaemonSchedule]


class Runner:
    def __init__(self) -> None:
        self.windows = 0
        self.ran = threading.Semaphore(0)
        self.fault: Exception | None = None

    def new_windows(self) -> int:
        return self.windows

    def run(self, stop: threading.Event) -> UpdateSummary:
        self.ran.release()
        if self.fault is not None:
            raise self.fault
        return UpdateSummary(7, "version 7")


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PolicyStore]:
    with PolicyStore(tmp_path / "policies") as opened:
        yield opened


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    opened = Recorder(
        lambda: open_log(tmp_path / "transitions.db"),
        Origin("h", "i", "t", None, "float32", "cpu", "hash"),
        time.time_ns,
        QUICK,
    )
    yield opened
    opened.close(LONG)


@pytest.fixture
def make(
    tmp_path: Path, runner: Runner, registry: CollectorRegistry, store: PolicyStore, recorder: Recorder
) -> Iterator[MakeSchedule]:
    made: list[DaemonSchedule] = []

    def build(**sections: object) -> DaemonSchedule:
        sections.setdefault("learning", LearningSettings(interval_seconds=0.05, min_new_windows=64))
        settings = Settings(state_dir=tmp_path, **sections)  # type: ignore[arg-type]
        schedule = DaemonSchedule(settings, Parts(store, recorder, registry, SystemClock(), runner))
        made.append(schedule)
        schedule.start()
        return schedule

    yield build
    for schedule in made:
        assert schedule.stop(LONG)


def ruin_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"{}")


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def test_updates_run_once_there_are_windows_and_are_counted(
    make: MakeSchedule, runner: Runner, registry: CollectorRegistry
) -> None:
    schedule = make()
    until(lambda: sample(registry, "respsd_job_runs_total", job=UPDATE, outcome="skipped") > 0)
    runner.windows = 64
    assert runner.ran.acquire(timeout=LONG)
    until(lambda: sample(registry, "respsd_job_runs_total", job=UPDATE, outcome="done") > 0)
    assert sample(registry, "respsd_job_last_done_timestamp_seconds", job=UPDATE) > 1.7e9
    assert sample(registry, "respsd_learning_paused") == 0
    status = schedule.status()
    assert {job.name for job in status.jobs} == {UPDATE, RETENTION, VERSIONS, BACKUP, CHECK}
    assert status.learning_paused is None


def test_train_now_does_with_a_minibatch_and_refuses_less(make: MakeSchedule, runner: Runner) -> None:
    schedule = make(learning=LearningSettings(interval_seconds=3600.0, min_new_windows=1000, batch_size=32))
    until(lambda: schedule.status().learning_paused is None)  # the log is open
    runner.windows = 31
    for dry_run in (True, False):
        with pytest.raises(ChangeRefused, match=r"31 new explorer windows.* takes 32 at least \(learning.batch_size\)"):
            schedule.train_now(actor="operator:ann", reason="", dry_run=dry_run)
    runner.windows = 32
    said = [schedule.train_now(actor="operator:ann", reason="", dry_run=dry_run) for dry_run in (True, False)]
    assert said == ["an update on 32 new windows would start", "an update on 32 new windows starts"]
    assert runner.ran.acquire(timeout=LONG)
    assert not runner.ran.acquire(timeout=0.05)


def test_a_freeze_pauses_learning_visibly_and_its_end_resumes_it(
    make: MakeSchedule, runner: Runner, registry: CollectorRegistry, store: PolicyStore
) -> None:
    runner.windows = 64
    with store.changing(actor="operator:ann", reason="exam") as change:
        change.freeze()
    schedule = make(schedule=ScheduleSettings(recheck_seconds=0.05))
    until(lambda: "paused: frozen" in next(j.last_detail for j in schedule.status().jobs if j.name == UPDATE))
    assert str(schedule.status().learning_paused).startswith("frozen by operator:ann at ")
    assert sample(registry, "respsd_learning_paused") == 1
    with pytest.raises(LearningPaused, match="exam"):
        schedule.train_now(actor="operator:ann", reason="", dry_run=False)
    assert not runner.ran.acquire(blocking=False)
    with store.changing(actor="operator:ann", reason="") as change:
        change.unfreeze()
    assert runner.ran.acquire(timeout=LONG)


def test_a_log_that_is_damaged_is_set_aside_and_learning_goes_on(
    make: MakeSchedule, runner: Runner, recorder: Recorder, tmp_path: Path
) -> None:
    """Retention, a check or a failed update finds it, and nobody has to do anything."""
    schedule = make()
    log = tmp_path / "transitions.db"
    until(lambda: schedule.status().learning_paused is None)
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with log.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (log.stat().st_size - 4096))
    runner.fault = UpdateFailed("error: database disk image is malformed")
    runner.windows = 64
    until(lambda: recorder.status().moved_aside is not None)  # the failed update had it checked
    runner.fault = None
    until(lambda: schedule.status().learning_paused is None)
    assert list(tmp_path.glob("transitions.db.damaged-*"))
    assert schedule.run_now(CHECK).result(LONG).verdict == "done"


def test_failing_updates_are_put_off_further_and_further(make: MakeSchedule, runner: Runner) -> None:
    runner.windows, runner.fault = 64, UpdateFailed("crashed")
    schedule = make(learning=LearningSettings(interval_seconds=0.01, min_new_windows=64))
    until(lambda: next(j.failures_in_a_row for j in schedule.status().jobs if j.name == UPDATE) >= 4)
    runner.fault = None
    until(lambda: next(j.failures_in_a_row for j in schedule.status().jobs if j.name == UPDATE) == 0)


def test_without_a_trainer_only_upkeep_runs(
    tmp_path: Path, registry: CollectorRegistry, store: PolicyStore, recorder: Recorder
) -> None:
    schedule = DaemonSchedule(Settings(state_dir=tmp_path), Parts(store, recorder, registry, SystemClock()))
    schedule.start()
    try:
        assert {job.name for job in schedule.status().jobs} == {RETENTION, VERSIONS, BACKUP, CHECK}
        assert schedule.status().learning_paused == "this daemon has no trainer"
        with pytest.raises(LearningPaused):
            schedule.train_now(actor="operator:ann", reason="", dry_run=False)
    finally:
        assert schedule.stop(LONG)


def test_without_a_log_there_are_backups_and_checks(tmp_path: Path, store: PolicyStore) -> None:
    schedule = DaemonSchedule(Settings(state_dir=tmp_path), Parts(store, None, CollectorRegistry(), SystemClock()))
    schedule.start()
    try:
        assert schedule.run_now(BACKUP).result(LONG).verdict == "done"
        assert [job.name for job in schedule.status().jobs] == [CHECK, VERSIONS, BACKUP]
    finally:
        assert schedule.stop(LONG)


def test_upkeep_works_on_the_state_folder(make: MakeSchedule, tmp_path: Path, registry: CollectorRegistry) -> None:
    schedule = make()
    until(lambda: schedule.status().learning_paused is None)  # the log is open
    assert schedule.run_now(BACKUP).result(LONG).detail.count(".db") == 2
    assert schedule.run_now(RETENTION).result(LONG).verdict == "done"
    assert sample(registry, "respsd_db_bytes") > 0
    assert schedule.run_now(CHECK).result(LONG).verdict == "done"


def test_the_first_backup_comes_soon_where_the_clock_was_set_back(tmp_path: Path, store: PolicyStore) -> None:
    """Whatever the skew, and at every start: no start waits it out."""

    def first_backup_seconds() -> float:
        schedule = DaemonSchedule(Settings(state_dir=tmp_path), Parts(store, None, CollectorRegistry(), SystemClock()))
        schedule.start()
        try:
            due = next(job.next_run_ns for job in schedule.status().jobs if job.name == BACKUP)
            assert due is not None
            return due / 1e9 - time.time()
        finally:
            assert schedule.stop(LONG)

    backup = back_up(store.path / "registry.db", tmp_path / "backups", keep=7).path
    assert first_backup_seconds() > 3600
    a_year_ahead = time.time() + 365 * 86_400
    os.utime(backup, (a_year_ahead, a_year_ahead))
    assert first_backup_seconds() < 120


@pytest.mark.parametrize("harm", [shutil.rmtree, ruin_manifest], ids=["missing", "damaged"])
def test_retention_goes_on_with_a_learner_that_cannot_be_read(
    make: MakeSchedule, store: PolicyStore, harm: Callable[[Path], None]
) -> None:
    draft = static_manifest(OFF, code_version="0", note="stands in for a learner")
    version = store.create(draft, actor="test")
    store.set_alias(LEARNER, version, actor="test", reason="test")
    harm(store.path / "versions" / str(version))
    schedule = make()
    until(lambda: schedule.status().learning_paused is None)  # the log is open
    assert schedule.run_now(RETENTION).result(LONG).verdict == "done"
