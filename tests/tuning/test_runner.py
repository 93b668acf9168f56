"""Updates in a process of their own: what they do, and what cannot go wrong for the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.recorders import NOON
from tuning.conftest import Workshop

from policy_store import PolicyStore
from respsd.clock import SystemClock
from respsd.paths import POLICIES
from respsd.settings_learning import LearningSettings
from respsd.tuning.baseline_speed import SpeedPoint
from respsd.tuning.job import UpdateOrder
from respsd.tuning.ledger import FILE, UpdateLedger
from respsd.tuning.report import UpdateReport
from respsd.tuning.runner import JOB, UpdateRunner

Filled = Callable[..., Workshop]
LIMITS = LearningSettings(time_limit_seconds=300, memory_limit_mib=4096)


class Published:
    """Takes note of what is published."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.versions: list[int] = []
        self._fault = fault

    def __call__(self, version: int, report: UpdateReport) -> None:
        if self._fault is not None:
            raise self._fault
        self.versions.append(version)


def runner(
    state: Path,
    publish: Callable[[int, UpdateReport], None],
    command: Sequence[str] = JOB,
    settings: LearningSettings = LIMITS,
) -> UpdateRunner:
    return UpdateRunner(
        state, settings, publish, clock=SystemClock(), seed=lambda: 7, code_version="0", command=command
    )


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def recorded(state: Path) -> list[str]:
    return [str(entry["reason"] or entry["status"]) for entry in UpdateLedger(state / FILE, SystemClock()).read()]


@pytest.mark.slow
def test_an_update_stores_publishes_and_records_a_version(filled: Filled) -> None:
    workshop, published = filled(30), Published()
    report = runner(workshop.state, published).run()
    assert (report.status, report.version, report.windows_used) == ("stored", 3, 120), report.detail
    assert published.versions == [3]
    assert workshop.store.load(3).manifest.parent == 2
    assert recorded(workshop.state) == ["stored"]


@pytest.mark.slow
def test_a_refused_update_publishes_nothing_and_says_why(workshop: Workshop) -> None:
    workshop.record(1)
    published = Published()
    report = runner(workshop.state, published).run()
    assert (report.status, report.reason) == ("refused", "too_few_windows"), report.detail
    assert published.versions == []
    assert recorded(workshop.state) == ["too_few_windows"]


@pytest.mark.slow
def test_a_store_that_is_broken_is_a_failure_with_its_reason(filled: Filled) -> None:
    workshop = filled(5)
    (workshop.state / POLICIES / "versions" / "2" / "policy.safetensors").write_bytes(b"nonsense")
    report = runner(workshop.state, Published()).run()
    assert (report.status, report.reason) == ("failed", "error")
    assert "hash" in report.detail


@pytest.mark.slow
def test_an_update_that_lacks_memory_fails_alone(filled: Filled) -> None:
    workshop = filled(5)
    report = runner(workshop.state, Published(), settings=LIMITS.model_copy(update={"memory_limit_mib": 256})).run()
    assert (report.status, report.reason) == ("failed", "memory_limit"), report.detail
    assert len(workshop.store.list()) == 2


def test_a_hog_that_no_limit_of_its_own_stops_is_killed(tmp_path: Path) -> None:
    hog = script("import sys, time; sys.stdin.readline(); held = bytearray(b'x') * (400 << 20); time.sleep(600)")
    settings = LIMITS.model_copy(update={"memory_limit_mib": 256})
    report = runner(tmp_path, Published(), hog, settings).run()
    assert (report.status, report.reason) == ("failed", "memory_limit")


def test_a_hanging_update_is_killed_at_the_time_limit(tmp_path: Path) -> None:
    settings = LIMITS.model_copy(update={"time_limit_seconds": 0.3})
    report = runner(tmp_path, Published(), script("import time; time.sleep(600)"), settings).run()
    assert (report.status, report.reason) == ("failed", "time_limit")
    assert recorded(tmp_path) == ["time_limit"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("import sys; sys.stderr.write('the reactor is gone'); sys.exit(9)", "exit code 9: the reactor is gone"),
        ("pass", "exit code 0"),
    ],
)
def test_a_crash_is_told_with_what_was_last_said(tmp_path: Path, text: str, said: str) -> None:
    report = runner(tmp_path, Published(), script(text)).run()
    assert (report.status, report.reason) == ("failed", "crashed")
    assert said in report.detail


@pytest.mark.parametrize("line", ["nonsense", '{"status": "stored", "no_such_figure": 1}', "[1]"])
def test_a_report_that_cannot_be_read_is_a_failure(tmp_path: Path, line: str) -> None:
    report = runner(tmp_path, Published(), script(f"print({line!r})")).run()
    assert (report.status, report.reason) == ("failed", "no_report")


def test_a_command_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    report = runner(tmp_path, Published(), ("/no/such/program",)).run()
    assert (report.status, report.reason) == ("failed", "cannot_start")


STORED = script('print(\'{"status": "stored", "version": 5}\')')


def test_what_cannot_be_published_is_recorded_as_that(tmp_path: Path) -> None:
    report = runner(tmp_path, Published(RuntimeError("no router")), STORED).run()
    assert (report.status, report.reason, report.version) == ("failed", "not_published", 5)
    assert recorded(tmp_path) == ["not_published"]


def test_a_ledger_that_cannot_be_written_does_not_undo_an_update(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    published = Published()
    assert runner(tmp_path, published, STORED).run().status == "stored"
    assert published.versions == [5]


def test_cancelling_kills_the_update_and_lets_no_other_start(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    text = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subject = runner(tmp_path, Published(), script(text))
    reports: list[UpdateReport] = []
    thread = threading.Thread(target=lambda: reports.append(subject.run()))
    thread.start()
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.01)
    assert subject.run().reason == "already_running"
    subject.cancel()
    thread.join(30)
    assert reports[0].reason == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert subject.run().reason == "cancelled"


@pytest.mark.slow
def test_a_job_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The parent dies by SIGKILL; its job, which waits for an order, must not stay."""
    marker = tmp_path / "pid"
    text = (
        "import subprocess, sys, time\n"
        "job = subprocess.Popen([sys.executable, '-m', 'respsd.tuning.job'], stdin=subprocess.PIPE)\n"
        f"open({str(marker)!r}, 'w').write(str(job.pid))\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(script(text), stdin=subprocess.DEVNULL)
    while not (marker.exists() and marker.read_text()):
        time.sleep(0.01)
    job = int(marker.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while _alive(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(job)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_whole_version_or_none(filled: Filled) -> None:
    workshop = filled(20)
    known = 2
    for number in range(6):
        text = f"import sys; sys.argv = ['job']\nimport respsd.tuning.job as job\n{_KILLED}\ncut({number})\njob.main()"
        report = runner(workshop.state, Published(), script(text)).run()
        assert (report.status, report.reason) == ("failed", "crashed"), report.detail
        assert "signal 9" in report.detail
        with PolicyStore(workshop.state / POLICIES, lambda: NOON) as store:  # recovers as a start does
            versions = [each.version for each in store.list()]
            assert len(versions) - known in (0, 1)
            known = len(versions)
            for version in versions:
                store.load(version)
    assert known > 2  # a kill after the rename leaves the version


_KILLED = """
import os, signal
import policy_store.artifact as artifact, policy_store.store as store

def cut(number):
    def dying(function, after):
        def call(*arguments, **named):
            if not after:
                os.kill(os.getpid(), signal.SIGKILL)
            function(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        return call
    place, name, after = [
        (store, 'write_version', False),
        (artifact, '_write_synced', False),
        (artifact, '_write_synced', True),
        (artifact, 'sync_folder', False),
        (artifact, 'sync_folder', True),
        (store, 'write_version', True),
    ][number]
    setattr(place, name, dying(getattr(place, name), after))
"""


def test_an_order_survives_its_journey(tmp_path: Path) -> None:
    order = UpdateOrder(tmp_path, tmp_path / "log", LIMITS, 3, "1.2", (SpeedPoint(100, 1.5, 42.0),))
    assert UpdateOrder.from_json(order.to_json()) == order


def test_the_ledger_passes_over_a_line_that_a_crash_cut_short(tmp_path: Path) -> None:
    ledger = UpdateLedger(tmp_path / FILE, SystemClock())
    ledger.append(UpdateReport(status="stored", version=3))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"status": "ref')
    ledger.append(UpdateReport(status="refused", reason="kl", kl=float("nan")))
    assert [entry["status"] for entry in ledger.read()] == ["stored", "refused"]
    assert ledger.read()[1]["kl"] is None
