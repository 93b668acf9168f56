"""Answer files: what is appended is read back, and what is no answer is counted."""

from __future__ import annotations

from pathlib import Path

from respsd.drafter_training.answers import Answer, AnswerFile, answer_key, read_answers
from respsd.drafter_training.prompts import Skipped

ONE = Answer("s", 0.0, [1, 2, 3], [4, 5])
TWO = Answer("s", 0.7, [1, 2, 3], [6])


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.jsonl"
    with AnswerFile(path) as file:
        file.append([ONE])
    with AnswerFile(path) as file:
        file.append([TWO])
    skipped = Skipped()
    assert list(read_answers(path, skipped)) == [ONE, TWO]
    assert skipped.total == 0


def test_a_line_that_a_kill_tore_is_cut_off_before_appending(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with AnswerFile(path) as file:
        file.append([ONE])
    with path.open("a") as raw:
        raw.write('{"source": "s", "temper')
    with AnswerFile(path) as file:
        file.append([TWO])
    assert list(read_answers(path, Skipped())) == [ONE, TWO]


def test_malformed_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = '{"temperature": 0, "prompt_ids": [1], "answer_ids": [2]}'
    lines = [
        "",
        "nonsense",
        "3",
        '{"temperature": 0, "prompt_ids": [1], "answer_ids": []}',
        '{"temperature": 0, "prompt_ids": [1], "answer_ids": [-2]}',
        '{"temperature": "hot", "prompt_ids": [1], "answer_ids": [2]}',
        good,
    ]
    path.write_text("\n".join(lines) + "\n")
    skipped = Skipped()
    assert list(read_answers(path, skipped)) == [Answer("answers", 0.0, [1], [2])]
    assert skipped.reasons == {
        "empty": 1,
        "not JSON": 1,
        "no JSON object": 1,
        "without token ids": 2,
        "without a temperature": 1,
    }


def test_the_key_tells_prompts_and_temperatures_apart() -> None:
    keys = {answer_key([1, 2], 0.0), answer_key([12], 0.0), answer_key([1, 2], 0.5), answer_key([2, 1], 0.0)}
    assert len(keys) == 4
    assert answer_key([1, 2], 0) == answer_key([1, 2], 0.0)
