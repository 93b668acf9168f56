"""Files that lines are appended to: whole lines or none, whatever happens in between."""

from __future__ import annotations

import errno
import gzip
from pathlib import Path

import pytest

from respsd.drafter_training.line_file import LineFile
from respsd.errors import TrainingDataError

ONE, TWO = '{"prompt": "ä"}', '{"prompt": "b"}'


def _append(path: Path, *lines: str) -> None:
    with LineFile(path) as file:
        file.append_lines(lines)


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "p.jsonl"
    _append(path, ONE)
    _append(path, TWO, ONE)
    assert path.read_text(encoding="utf-8") == f"{ONE}\n{TWO}\n{ONE}\n"


@pytest.mark.parametrize("torn", [b'{"prompt": "ab', '{"prompt": "ä'.encode()[:-1], b"x" * 200_000, b"\0" * 9])
@pytest.mark.parametrize("before", [[], [ONE]])
def test_a_line_that_a_kill_tore_is_cut_off_before_appending(tmp_path: Path, torn: bytes, before: list[str]) -> None:
    path = tmp_path / "p.jsonl"
    _append(path, *before)
    with path.open("ab") as raw:
        raw.write(torn)
    _append(path, TWO)
    assert path.read_text(encoding="utf-8").splitlines() == [*before, TWO]


def test_a_whole_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{ONE}\n{TWO}", encoding="utf-8")
    _append(path, ONE)
    assert path.read_text(encoding="utf-8").splitlines() == [ONE, TWO, ONE]


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "p.jsonl"
    with LineFile(path) as file:
        file.append_lines([ONE])
        with monkeypatch.context() as patch:
            patch.setattr("respsd.drafter_training.line_file.os.fsync", refuse)
            with pytest.raises(TrainingDataError, match="No space left on device; what was written before is kept"):
                file.append_lines([TWO])
        assert path.read_text(encoding="utf-8") == f"{ONE}\n"
        file.append_lines([TWO])
    assert path.read_text(encoding="utf-8") == f"{ONE}\n{TWO}\n"


def test_two_runs_do_not_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with LineFile(path) as file:
        file.append_lines([ONE])
        with pytest.raises(TrainingDataError, match="by another process"):
            LineFile(path)
        file.append_lines([TWO])
    _append(path, ONE)
    assert path.read_text(encoding="utf-8").splitlines() == [ONE, TWO, ONE]


def test_a_compressed_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(f"{ONE}\n".encode()))
    content = path.read_bytes()
    with pytest.raises(TrainingDataError, match=r"\.gz means compressed"):
        LineFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", [".", "file/p.jsonl", "/dev/full"])
def test_a_place_where_no_file_can_be_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingDataError, match=r"cannot be (opened for appending|appended to)"):
        LineFile(tmp_path / place)
