from __future__ import annotations

import json

import pytest
import structlog
from support import tiny

from respsd.bench.questions import (
    BUILT_IN,
    BUILT_IN_COUNT,
    BUILT_IN_KINDS,
    built_in,
    built_in_turns,
    encode_turn,
    question_sets,
    read_questions,
    read_turns,
)
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
    with structlog.testing.capture_logs() as lines:
        questions = read_questions(file, tokenizer, limit=2, max_prompt_tokens=100)
    assert [tokenizer.decode(prompt)[6] for prompt in questions.prompts] == ["a", "b"]
    (told,) = lines  # a mean over fewer questions than there are must not look like one over all
    assert (told["event"], told["questions"], told["longer_than_tokens"]) == ("questions_left_out", 1, 100)


def test_a_line_ends_where_json_lines_end(tmp_path, tokenizer):
    file = tmp_path / "q.jsonl"
    file.write_text('{"turns": ["one\u2028line"]}\r\n{"turns": ["b"]}\n', encoding="utf-8", newline="")
    assert len(read_questions(file, tokenizer).prompts) == 2


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


def test_the_built_in_set_has_a_dozen_of_each_kind_in_turn():
    turns = built_in_turns()
    assert len(turns) == len(set(turns)) == BUILT_IN_COUNT == 12 * len(BUILT_IN_KINDS)
    assert all(text.strip() for question in turns for text in question)
    assert any(len(question) > 1 for question in turns)
    assert all(question[0].startswith("Summarise") for question in turns[3::4])


def test_without_a_file_the_built_in_questions_that_fit_are_taken(tokenizer):
    (everything,) = question_sets((), tokenizer, limit=48, max_prompt_tokens=10_000)
    shortest = min(map(len, everything.prompts))
    (short,) = question_sets((), tokenizer, limit=48, max_prompt_tokens=shortest)
    assert 0 < len(short.prompts) < 48
    assert len(short.turns) == len(short.prompts)
    with pytest.raises(CheckpointError, match="at most 1 tokens"):
        question_sets((), tokenizer, limit=48, max_prompt_tokens=1)


def test_all_turns_are_kept_and_can_be_read_without_a_tokenizer(tmp_path, tokenizer):
    file = write(tmp_path / "q.jsonl", {"turns": ["one", "two"]}, {"turns": ["three"]})
    assert read_turns(file) == (("one", "two"), ("three",))
    questions = read_questions(file, tokenizer)
    assert (questions.turns_of(0), questions.part(slice(1, None)).turns) == (("one", "two"), (("three",),))


def test_a_later_turn_stands_behind_the_turns_and_answers_before_it(tokenizer):
    prompt = encode_turn(tokenizer, "b", [("a", "yes")])
    assert tokenizer.decode(prompt) == "user: a\nassistant: yes\nuser: b\nassistant: "
