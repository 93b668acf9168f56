"""What one pass over the answers finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from respsd.drafter_training.answer_survey import AnswerFiles, CommonPrefix, parts
from respsd.drafter_training.answers import Answer, AnswerFile
from respsd.drafter_training.prompts import Skipped
from respsd.errors import TrainingDataError

ANSWERS = [Answer("a", 0.0, [1, 9, 9], [5, 5, 3]), Answer("a", 0.0, [1, 9], [7]), Answer("b", 0.0, [1] * 9, [2])]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with AnswerFile(tmp_path / "a.jsonl") as out:
        out.append(ANSWERS)
    return tmp_path / "a.jsonl"


def test_answer_tokens_are_counted_and_long_sequences_left_out(file: Path) -> None:
    skipped = Skipped()
    survey = AnswerFiles([file, file], max_tokens=8).survey(10, skipped)
    assert survey.answers == 4
    assert survey.token_counts.tolist() == [0, 0, 0, 2, 0, 4, 0, 2, 0, 0]
    assert survey.common_prefix == 2
    assert skipped.reasons == {"longer than 8 tokens": 2}


def test_every_pass_reads_the_same_answers(file: Path) -> None:
    answers = AnswerFiles([file], max_tokens=8)
    assert list(answers) == list(answers) == ANSWERS[:2]


def test_answers_of_another_vocabulary_are_refused(file: Path) -> None:
    with pytest.raises(TrainingDataError, match="answer 1 has token ids beyond the target's 9"):
        AnswerFiles([file], max_tokens=99).survey(9, Skipped())


def test_common_prefix() -> None:
    prefix = CommonPrefix()
    lengths = []
    for tokens in ([1, 2, 3], [1, 2, 4], [1, 2], [1, 2, 3, 9], [7]):
        prefix.add(tokens)
        lengths.append(prefix.length)
    assert lengths == [3, 2, 2, 2, 0]


def test_parts_lose_nothing() -> None:
    assert [len(part) for part in parts(ANSWERS, 2)] == [2, 1]
    assert [one for part in parts(ANSWERS, 2) for one in part] == ANSWERS
    assert list(parts([], 2)) == []
