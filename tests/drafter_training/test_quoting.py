"""Prompts that quote the target's own prose: whole sentences, each answer once, and the same ones for the same seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.drafter_training.quoting import DEFAULT_TEMPLATES, Quoted, QuoteOptions, quote, whole_sentences
from respsd.errors import InvalidRequest, TrainingDataError

END = 0
LONG = "A sentence of forty characters stands so. " * 6


class Letters:
    """A tokenizer of one character a token; 0 ends a text."""

    special_token_ids = frozenset({END})

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def answers(file: Path, *texts: str) -> Path:
    lines = [
        {"source": "s", "temperature": 0.0, "prompt_ids": [number + 1], "answer_ids": [*map(ord, text), END]}
        for number, text in enumerate(texts)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def prompts(file: Path) -> list[str]:
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(one.keys() == {"source", "prompt"} and one["source"] == "quoted" for one in documents)
    return [one["prompt"] for one in documents]


def run(folder: Path, options: QuoteOptions, *texts: str) -> Quoted:
    return quote([answers(folder / "answers.jsonl", *texts)], folder / "prompts.jsonl", Letters(), options)


def test_each_answer_is_quoted_once_in_whole_sentences_without_its_end_token(tmp_path: Path) -> None:
    texts = [f"Number {number}. {LONG}And then it was cut off in the mid" for number in range(9)]
    done = run(tmp_path, QuoteOptions(100, ("Say: {}",)), *texts)

    found = prompts(tmp_path / "prompts.jsonl")
    assert done.prompts == len(found)
    assert all(prompt.startswith("Say: Number ") and prompt.endswith("stands so.") for prompt in found)
    joined = " ".join(found)
    assert [joined.count(f"Number {number}.") for number in range(9)] == [1] * 9
    assert all(1 <= prompt.count("Number") <= 4 for prompt in found)


def test_code_and_short_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    done = run(tmp_path, QuoteOptions(9), LONG, f"```python\npass\n```\n{LONG}", "Short.", "x" * 900)
    assert done.prompts == 1
    assert dict(done.skipped.reasons) == {
        "with code": 1,
        "with less than 200 characters of whole sentences": 2,
    }


def test_lines_and_spaces_become_one_paragraph(tmp_path: Path) -> None:
    run(tmp_path, QuoteOptions(1, ("{}",)), f"First  line.\n\n\t{LONG}\n")
    assert prompts(tmp_path / "prompts.jsonl") == [f"First line. {LONG}".strip()]


def test_the_file_ends_at_the_count_and_a_second_run_adds_what_is_missing(tmp_path: Path) -> None:
    texts = [f"Number {number}. {LONG}" for number in range(40)]
    assert run(tmp_path, QuoteOptions(3), *texts) == Quoted(3, 0, run(tmp_path, QuoteOptions(3), *texts).skipped)
    first = prompts(tmp_path / "prompts.jsonl")
    assert len(first) == 3

    assert run(tmp_path, QuoteOptions(5), *texts).prompts == 2
    more = prompts(tmp_path / "prompts.jsonl")
    assert more[:3] == first
    assert len(set(more)) == 5


def test_the_seed_decides(tmp_path: Path) -> None:
    texts = [f"Number {number}. {LONG}" for number in range(12)]
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        folder = tmp_path / name
        folder.mkdir()
        run(folder, QuoteOptions(99, seed=seed), *texts)
        found.append(prompts(folder / "prompts.jsonl"))
    assert found[0] == found[1] != found[2]


def test_braces_in_a_text_stay(tmp_path: Path) -> None:
    run(tmp_path, QuoteOptions(1, ("Say {} now",)), f"A {{}} and {{0}} stand here. {LONG}")
    assert prompts(tmp_path / "prompts.jsonl")[0].startswith("Say A {} and {0} stand here. A sentence")


def test_nothing_to_quote_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="no prose to quote; 1 answer skipped"):
        run(tmp_path, QuoteOptions(1), "Short.")
    assert not (tmp_path / "prompts.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (QuoteOptions(0), "count"),
        (QuoteOptions(1, most_answers=0), "most_answers"),
        (QuoteOptions(1, ()), "template"),
        (QuoteOptions(1, ("Summarize",)), "template"),
        (QuoteOptions(1, ("{} {}",)), "template"),
    ],
)
def test_bad_options_are_named(options: QuoteOptions, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        options.validated()


@given(st.text(alphabet="ab .!?", max_size=40))
def test_whole_sentences_are_a_beginning_that_ends_with_a_mark(text: str) -> None:
    kept = whole_sentences(text)
    assert text.startswith(kept)
    assert not kept or kept[-1] in ".!?"
    rest = text[len(kept) :]
    assert not any(mark in rest for mark in (". ", "! ", "? "))
    assert not rest.endswith((".", "!", "?"))


def test_the_default_templates_are_valid() -> None:
    QuoteOptions(1, DEFAULT_TEMPLATES).validated()
