from __future__ import annotations

import json

import pytest
from support import tiny

from respsd.bench.questions import BUILT_IN, built_in, read_questions
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import CheckpointError


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return HfTokenizer(tiny.tokenizer(), (2,))


def write(path, *questions):
    path.write_text("\n".join(json.dumps(question) for question in questions) + "\n")
    return path


def test_first_turns_go_through_the_chat_template(tmp_path, tokenizer):
    file = write(tmp_path / "q.jsonl", {"turns": ["one", "two"]}, {"turns": ["three"]})
    questions = read_questions(file, tokenizer)
    assert questions.name == "q"
    assert [tokenizer.decode(prompt) for prompt in questions.prompts] == [
        "user: one\nassistant: ",
        "user: three\nassistant: ",
    ]


def test_limit_counts_the_questions_that_fit(tmp_path, tokenizer):
    file = write(tmp_path / "q.jsonl", {"turns": ["x" * 500]}, {"turns": ["a"]}, {"turns": ["b"]}, {"turns": ["c"]})
    questions = read_questions(file, tokenizer, limit=2, max_prompt_tokens=100)
    assert [tokenizer.decode(prompt)[6] for prompt in questions.prompts] == ["a", "b"]


def test_eagles_layout_takes_the_name_of_its_folder(tmp_path, tokenizer):
    folder = tmp_path / "mt_bench"
    folder.mkdir()
    assert read_questions(write(folder / "question.jsonl", {"turns": ["a"]}), tokenizer).name == "mt_bench"


@pytest.mark.parametrize("line", ["not json", "{}", '{"turns": []}', '{"turns": [""]}', '{"turns": [3]}', "[1]"])
def test_a_line_that_is_no_question_is_named(tmp_path, tokenizer, line):
    file = tmp_path / "q.jsonl"
    file.write_text('{"turns": ["good"]}\n' + line + "\n")
    with pytest.raises(CheckpointError, match=r"q\.jsonl:2"):
        read_questions(file, tokenizer)


def test_a_file_without_a_fitting_question_is_refused(tmp_path, tokenizer):
    file = write(tmp_path / "q.jsonl", {"turns": ["x" * 500]})
    with pytest.raises(CheckpointError, match="at most 10 tokens"):
        read_questions(file, tokenizer, max_prompt_tokens=10)


def test_the_built_in_set_needs_no_file(tokenizer):
    questions = built_in(tokenizer, 3)
    assert (questions.name, len(questions.prompts)) == (BUILT_IN, 3)
