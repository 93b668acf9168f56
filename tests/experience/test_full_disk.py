"""A file system that is really full: a small tmpfs, where this user may mount one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.recorders import LONG, QUICK, MakeRequest, MakeWindow, Start, count, until

from respsd.errors import StorageError
from respsd.experience.database import open_log
from respsd.experience.integrity import inspect
from respsd.experience.snapshot import back_up
from respsd.scheduling.learning_gate import LearningGate

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("only root may mount a file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB // 4, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def test_recording_pauses_counts_and_goes_on_when_there_is_room_again(
    disk: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    path = disk / "transitions.db"
    recorder = start(replace(QUICK, queue_rows=20), lambda: open_log(path))
    gate = LearningGate(_NotFrozen(), recorder.status)
    recorder.record(make_request("before"), [make_window()])
    assert recorder.flush(LONG)
    assert gate.paused() is None
    ballast = fill(disk)
    bulky = make_window(observation=bytes(300_000))
    assert recorder.record(make_request("waits"), [bulky])
    until(lambda: recorder.status().state == "degraded")
    assert gate.paused() == "the experience log cannot be written: database or disk is full"
    accepted = [recorder.record(make_request(f"more-{n}"), [make_window(each) for each in range(4)]) for n in range(8)]
    assert accepted == [True] * 3 + [False] * 5  # 2 + 3 * 5 of 20 rows
    assert recorder.status().dropped_requests == {"queue_full": 5}
    assert count(path, "requests") == 1  # reading goes on
    ballast.unlink()
    assert recorder.flush(LONG)
    assert (recorder.status().state, gate.paused()) == ("ok", None)
    assert count(path, "requests") == 1 + 1 + 3
    assert inspect(path, thorough=True).is_sound


def test_a_log_that_cannot_be_begun_is_begun_when_there_is_room(
    disk: Path, start: Start, make_request: MakeRequest
) -> None:
    ballast = fill(disk)
    path = disk / "transitions.db"
    recorder = start(opener=lambda: open_log(path))
    recorder.record(make_request("kept"), [])
    until(lambda: recorder.status().state == "degraded")
    ballast.unlink()
    assert recorder.flush(LONG)
    assert recorder.status().moved_aside is None
    assert count(path, "requests") == 1


def test_a_backup_that_has_no_room_fails_and_leaves_nothing(
    disk: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    path = disk / "transitions.db"
    recorder = start(opener=lambda: open_log(path))
    recorder.record(make_request(), [make_window(observation=bytes(100_000))])
    assert recorder.flush(LONG)
    ballast = fill(disk)
    with pytest.raises(StorageError):
        back_up(path, disk / "backups", keep=1)
    ballast.unlink()
    assert list((disk / "backups").glob("*")) == []
    assert back_up(path, disk / "backups", keep=1).is_new


class _NotFrozen:
    def flags(self):
        from policy_store import Flags

        return Flags()
