"""One process at a time writes to a folder, and a dead one holds nobody up."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from respsd.drafter_training.folder_lock import sole_writer
from respsd.errors import TrainingDataError

_HOLDER = """
import sys, time
from pathlib import Path
from respsd.drafter_training.folder_lock import sole_writer
with sole_writer(Path(sys.argv[1]), "run", wait=False):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_and_one_of_something_else_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with sole_writer(folder, "run", wait=False):
        with pytest.raises(TrainingDataError, match="being written to by another run"), _held(folder):
            pass
        with sole_writer(folder, "features", wait=False):
            pass
    with sole_writer(folder, "run", wait=False):
        pass


def test_whoever_waits_comes_after(tmp_path: Path) -> None:
    order: list[str] = []

    def wait() -> None:
        with sole_writer(tmp_path, "features", wait=True):
            order.append("second")

    with sole_writer(tmp_path, "features", wait=False):
        second = threading.Thread(target=wait)
        second.start()
        second.join(0.1)
        order.append("first")
    second.join(30)
    assert order == ["first", "second"]


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TrainingDataError), _held(tmp_path):
            pass
        holder.kill()
    with _held(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingDataError, match="file"), _held(tmp_path / "file"):
        pass
    (tmp_path / ".run.lock").mkdir()
    with pytest.raises(TrainingDataError, match="cannot be written to"), _held(tmp_path):
        pass


def _held(folder: Path):  # type: ignore[no-untyped-def]  # a context manager
    return sole_writer(folder, "run", wait=False)
