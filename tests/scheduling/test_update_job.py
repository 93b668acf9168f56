from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.recorders import LONG, NOON

from policy_store import PolicyStore
from respsd.errors import LearningPaused, StorageError, UpdateFailed
from respsd.experience.recorder import RecorderStatus
from respsd.scheduling.job import Outcome
from respsd.scheduling.learning_gate import LearningGate
from respsd.scheduling.spawned_update import SpawnedUpdate
from respsd.scheduling.update_job import UpdateJob, UpdateSummary
from respsd.tuning.report import UpdateReport

OK = RecorderStatus("ok", None, None, None, 0, 0, 0, {}, {})
GO_ON = threading.Event()


class Runner:
    """Counts what it is asked; stores version 7 unless told otherwise."""

    def __init__(self) -> None:
        self.windows = 0
        self.runs = 0
        self.summary = UpdateSummary(7, "version 7")
        self.fault: Exception | None = None

    def new_windows(self) -> int:
        return self.windows

    def run(self, stop: threading.Event) -> UpdateSummary:
        self.runs += 1
        if self.fault is not None:
            raise self.fault
        return self.summary


class Machine:
    """An update job with everything around it."""

    def __init__(self, store: PolicyStore | None) -> None:
        self.store = store
        self.recorder = OK
        self.runner = Runner()
        self.failures = 0
        self.gate = LearningGate(store, lambda: self.recorder)
        self.job = self.with_gate(self.gate)

    def with_gate(self, gate: LearningGate) -> UpdateJob:
        return UpdateJob(self.runner, gate, min_new_windows=64, recheck_seconds=5.0, failed=self._failed)

    def _failed(self) -> None:
        self.failures += 1


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "policies", lambda: NOON)


@pytest.fixture
def machine(store: PolicyStore) -> Machine:
    return Machine(store)


def test_an_update_waits_for_its_windows_and_looks_again_soon(machine: Machine) -> None:
    machine.runner.windows = 63
    assert machine.job(GO_ON) == Outcome("skipped", "63 of 64 new windows", 5.0)
    assert machine.runner.runs == 0
    machine.runner.windows = 64
    assert machine.job(GO_ON) == Outcome("done", "version 7")
    assert machine.runner.runs == 1


def test_one_that_is_asked_for_runs_with_any_number_of_windows_once(machine: Machine) -> None:
    machine.job.ask()
    assert machine.job(GO_ON).verdict == "done"
    assert machine.job(GO_ON).verdict == "skipped"


def test_a_refused_update_is_not_repeated_with_the_same_windows(machine: Machine) -> None:
    machine.runner.windows = 100
    machine.runner.summary = UpdateSummary(None, "refused")
    assert machine.job(GO_ON) == Outcome("done", "refused")
    machine.runner.windows = 163
    assert machine.job(GO_ON) == Outcome("skipped", "163 of 164 new windows", 5.0)
    machine.runner.windows = 164
    machine.runner.summary = UpdateSummary(8, "version 8")
    assert machine.job(GO_ON).detail == "version 8"
    machine.runner.windows = 64
    assert machine.job(GO_ON).verdict == "done"


def test_a_log_that_was_begun_anew_forgets_the_refusal(machine: Machine) -> None:
    machine.runner.windows = 1000
    machine.runner.summary = UpdateSummary(None, "refused")
    machine.job(GO_ON)
    machine.runner.windows = 64
    assert machine.job(GO_ON).verdict == "done"


def test_a_failure_is_told_unless_the_daemon_stops(machine: Machine) -> None:
    machine.runner.windows = 64
    machine.runner.fault = UpdateFailed("crashed")
    with pytest.raises(UpdateFailed):
        machine.job(GO_ON)
    assert machine.failures == 1
    stop = threading.Event()
    stop.set()
    with pytest.raises(UpdateFailed):
        machine.job(stop)
    assert machine.failures == 1


def test_learning_pauses_while_it_is_frozen_and_goes_on_by_itself(machine: Machine, store: PolicyStore) -> None:
    machine.runner.windows = 64
    with store.changing(actor="operator:ann", reason="the weekend") as change:
        change.freeze()
    assert machine.job(GO_ON).detail.startswith("paused: frozen by operator:ann at 2026-11-30T12:00:00")
    assert machine.job(GO_ON).detail.endswith(": the weekend")
    with pytest.raises(LearningPaused, match="frozen by operator:ann"):
        machine.job.ask()
    with store.changing(actor="operator:ann", reason="") as change:
        change.unfreeze()
    assert machine.job(GO_ON).verdict == "done"


def test_learning_pauses_while_the_log_cannot_be_written_and_goes_on_by_itself(machine: Machine) -> None:
    machine.runner.windows = 64
    machine.recorder = replace(OK, state="degraded", reason="database or disk is full")
    expected = "paused: the experience log cannot be written: database or disk is full"
    assert machine.job(GO_ON) == Outcome("skipped", expected, 5.0)
    machine.recorder = OK
    assert machine.job(GO_ON).verdict == "done"


def test_learning_waits_for_the_log_to_be_opened(machine: Machine) -> None:
    machine.recorder = replace(OK, is_open=False)
    assert machine.gate.paused() == "the experience log is not open yet"


def test_learning_pauses_while_the_registry_is_damaged(machine: Machine) -> None:
    machine.gate.registry_checked("page 3 is broken")
    assert machine.gate.paused() == "the policy store's registry is damaged: page 3 is broken"
    machine.gate.registry_checked(None)
    assert machine.gate.paused() is None


def test_a_registry_that_cannot_be_read_pauses_learning(machine: Machine, store: PolicyStore, tmp_path: Path) -> None:
    store.close()
    for file in (tmp_path / "policies").glob("registry.db*"):
        file.unlink()
    (tmp_path / "policies" / "registry.db").write_bytes(b"rubbish" * 1000)
    assert "not a database" in str(machine.gate.paused())


def test_without_a_store_or_a_log_nothing_is_learnt(store: PolicyStore) -> None:
    assert LearningGate(None, lambda: OK).paused() == "the policy store could not be opened"
    assert "recorder.enabled" in str(LearningGate(store, None).paused())


def test_learning_that_is_switched_off_still_does_what_is_asked_for(machine: Machine, store: PolicyStore) -> None:
    machine.runner.windows = 1000
    job = machine.with_gate(LearningGate(store, lambda: OK, enabled=False))
    assert job(GO_ON).detail == "paused: learning.enabled is false"
    job.ask()
    assert job(GO_ON).verdict == "done"


class Trainer:
    """Ends when told to, or with a report at once."""

    def __init__(self, report: UpdateReport | None) -> None:
        self.report = report
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    def run(self) -> UpdateReport:
        self.begun.set()
        if self.report is None:
            assert self.cancelled.wait(LONG)
            return UpdateReport(status="failed", reason="cancelled", detail="the daemon is stopping")
        return self.report

    def cancel(self) -> None:
        self.cancelled.set()


def test_the_trainers_report_becomes_the_runs_outcome() -> None:
    def run(**report: object) -> UpdateSummary:
        return SpawnedUpdate(Trainer(UpdateReport(**report)), lambda: 5).run(threading.Event())  # type: ignore[arg-type]

    stored = {"status": "stored", "version": 9, "windows_used": 256}
    assert run(**stored) == UpdateSummary(9, "version 9 is the learner, trained on 256 windows")
    said = run(**stored, candidate=True).detail
    assert said == "version 9 is the learner and a possible candidate, trained on 256 windows"
    refused = run(status="refused", reason="kl", detail="it moved by 3 nats")
    assert refused == UpdateSummary(None, "refused (kl): it moved by 3 nats")
    with pytest.raises(UpdateFailed, match="time_limit: it ran for more than 300 s"):
        run(status="failed", reason="time_limit", detail="it ran for more than 300 s")
    assert SpawnedUpdate(Trainer(None), lambda: 5).new_windows() == 5


def test_stopping_cancels_the_trainer() -> None:
    trainer, stop = Trainer(None), threading.Event()
    threading.Thread(target=lambda: (trainer.begun.wait(LONG), stop.set())).start()
    with pytest.raises(UpdateFailed, match="cancelled"):
        SpawnedUpdate(trainer, lambda: 0).run(stop)


def test_a_log_that_cannot_be_read_fails_the_run(machine: Machine) -> None:
    def fail() -> int:
        raise StorageError("disk I/O error")

    machine.runner.new_windows = fail  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        machine.job(GO_ON)
    assert machine.failures == 1
