"""Prompt files: what is read, and what is counted instead."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from respsd.drafter_training.prompts import Skipped, read_conversations
from respsd.errors import TrainingDataError


def _write(file: Path, lines: list[object]) -> Path:
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def test_prompt_turns_and_messages_are_read(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    file = _write(
        tmp_path / "p.jsonl",
        [{"prompt": "a", "source": "x"}, {"turns": ["b", "c"]}, {"messages": [system, user], "source": "y"}],
    )
    skipped = Skipped()
    first, second, third = read_conversations(file, skipped)
    assert (first.source, first.opening, first.turns) == ("x", (), ("a",))
    assert second.turns == ("b", "c")
    assert (third.source, third.opening, third.turns) == ("y", (system,), ("u",))
    assert skipped.total == 0
    assert skipped.describe() == "no line skipped"


def test_unusable_lines_are_counted_by_reason_and_the_rest_is_kept(tmp_path: Path) -> None:
    file = _write(
        tmp_path / "p.jsonl",
        [
            "",
            "   ",
            "{not json",
            "[1]",
            {"prompt": ""},
            {"prompt": 3},
            {"turns": []},
            {"messages": [{"role": "robot", "content": "x"}]},
            {"messages": [{"role": "assistant", "content": "x"}]},
            {"prompt": "good"},
        ],
    )
    skipped = Skipped()
    assert [one.turns for one in read_conversations(file, skipped)] == [("good",)]
    assert skipped.reasons == {
        "empty": 2,
        "not JSON": 1,
        "no JSON object": 1,
        "without a prompt": 3,
        "with malformed messages": 1,
        "that does not end with the user": 1,
    }
    assert skipped.describe().startswith("9 lines skipped (")


def test_gzipped_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl.gz"
    with gzip.open(file, "wt") as out:
        out.write('{"prompt": "zipped"}\n')
    assert [one.turns for one in read_conversations(file, Skipped())] == [("zipped",)]


@pytest.mark.parametrize("name", ["missing.jsonl", "not-gzip.jsonl.gz", "not-utf8.jsonl"])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if not name.startswith("missing"):
        file.write_bytes(b"\xff\xfe\n")
    with pytest.raises(TrainingDataError, match=name):
        list(read_conversations(file, Skipped()))


def test_a_damaged_gzipped_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "torn.jsonl.gz"
    whole = gzip.compress(json.dumps({"prompt": "x" * 999}).encode() * 99)
    for damaged in (whole[: len(whole) // 2], whole[:20] + b"\xff" * 9 + whole[29:]):
        file.write_bytes(damaged)
        with pytest.raises(TrainingDataError, match="torn"):
            list(read_conversations(file, Skipped()))
