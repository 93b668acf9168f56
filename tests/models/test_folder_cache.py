from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from respsd.models import folder_cache
from respsd.models.folder_cache import SEAL, fault_of, make_once


def fill(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(b"12345678")


def forbidden(folder: Path) -> None:
    raise AssertionError("a whole folder is not filled again")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "models" / "m", "origin 1", fill)
    assert folder == tmp_path / "models" / "m"
    assert names(folder) == {"config.json", "weights", SEAL}
    assert make_once(folder, "origin 1", forbidden) == folder


def test_the_seal_holds_sizes_and_hashes(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "m", "origin 1", fill)
    sealed = json.loads((folder / SEAL).read_text())
    digest = "ef797c8118f02dfb649607dd5d3f8c7623048c9c063d532cc95c5ed7a898a64f"  # sha256 of 12345678
    assert sealed["files"]["weights"] == {"size": 8, "sha256": digest}


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda folder: (folder / "weights").unlink(), "weights is missing"),
        (lambda folder: (folder / "weights").write_bytes(b"1"), "weights has 1 bytes instead of 8"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json was changed"),
        (lambda folder: (folder / SEAL).write_text("[]"), "seal cannot be read"),
        (lambda folder: (folder / SEAL).unlink(), "respsd-seal.json is missing"),
        (shutil.rmtree, "respsd-seal.json is missing"),
    ],
)
def test_a_faulty_folder_is_found_out_and_made_again(tmp_path: Path, spoil, fault: str) -> None:
    folder = make_once(tmp_path / "m", "origin 1", fill)
    spoil(folder)
    assert fault in str(fault_of(folder, "origin 1"))
    make_once(folder, "origin 1", fill)
    assert fault_of(folder, "origin 1") is None
    assert (folder / "weights").read_bytes() == b"12345678"


def test_content_of_another_origin_is_made_again(tmp_path: Path) -> None:
    folder = make_once(tmp_path / "m", "origin 1", fill)
    assert fault_of(folder, "origin 2") == "it was made from origin 1"
    make_once(folder, "origin 2", fill)
    assert fault_of(folder, "origin 2") is None


def test_large_files_are_checked_by_size_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_once(tmp_path / "m", "origin 1", fill)
    monkeypatch.setattr(folder_cache, "REHASHED_BYTES", 4)
    (folder / "weights").write_bytes(b"87654321")
    assert fault_of(folder, "origin 1") is None


def test_a_failed_filling_leaves_no_trace(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        make_once(tmp_path / "m", "origin 1", fail)
    assert names(tmp_path) == {".m.lock"}


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".m.partial-abc").mkdir()
    make_once(tmp_path / "m", "origin 1", fill)
    assert names(tmp_path) == {".m.lock", "m"}


def _make(folder: Path, turns: Path) -> None:
    def slowly(partial: Path) -> None:
        with turns.open("a") as stream:
            stream.write("filled\n")
        fill(partial)

    make_once(folder, "origin 1", slowly)


def test_of_two_processes_one_fills(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=_make, args=(tmp_path / "m", tmp_path / "turns")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert (tmp_path / "turns").read_text() == "filled\n"
