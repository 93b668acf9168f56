"""Questions to measure on: files in EAGLE's `question.jsonl` form, or a small built-in set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from respsd.engine.api import Tokenizer
from respsd.errors import CheckpointError

BUILT_IN = "built-in"

_PROMPTS = (
    "Explain why the sky is blue to a ten-year-old.",
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "A shop sells pencils in packs of 12. Anna needs 150 pencils. How many packs must she buy, and how many are left?",
    "Summarise the water cycle in three sentences.",
    "Give me five ideas for a cheap weekend trip with two children.",
    "Translate to French: The train to Lyon leaves at seven in the morning.",
    "Write a short letter to a landlord about a broken heating system.",
    "List the planets of the solar system, from the sun outwards, with one fact about each.",
    "What is the difference between a list and a tuple in Python? Show an example of each.",
    "Tom runs 5 km in 24 minutes. At the same pace, how long does he need for 8 km? Show your steps.",
    "Continue the story: The lighthouse keeper found a letter in a bottle.",
    "Name three causes of the fall of the Western Roman Empire and explain one of them.",
)

BUILT_IN_COUNT = len(_PROMPTS)


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Prompts of one file, as token ids by the model's chat template (plain text where it has none)."""

    name: str
    prompts: tuple[tuple[int, ...], ...]


def built_in(tokenizer: Tokenizer, limit: int | None = None) -> QuestionSet:
    """The project's own questions, the first `limit` of them."""
    prompts = tuple(_encode(tokenizer, question) for question in _PROMPTS[:limit])
    return QuestionSet(BUILT_IN, prompts)


def question_sets(
    files: Sequence[Path], tokenizer: Tokenizer, *, limit: int, max_prompt_tokens: int
) -> list[QuestionSet]:
    """Each file's questions, or the built-in ones where there is no file."""
    sets = [read_questions(file, tokenizer, limit=limit, max_prompt_tokens=max_prompt_tokens) for file in files]
    return sets or [built_in(tokenizer, limit)]


def read_questions(
    file: Path, tokenizer: Tokenizer, *, limit: int | None = None, max_prompt_tokens: int | None = None
) -> QuestionSet:
    """The first turn of each question of a file, the first `limit` that are not longer than `max_prompt_tokens`.

    Raises CheckpointError naming file and line where a line is no question.
    """
    prompts: list[tuple[int, ...]] = []
    for number, line in enumerate(_lines(file), start=1):
        if limit is not None and len(prompts) == limit:
            break
        prompt = _encode(tokenizer, _first_turn(file, number, line))
        if max_prompt_tokens is None or len(prompt) <= max_prompt_tokens:
            prompts.append(prompt)
    if not prompts:
        raise CheckpointError(str(file), f"holds no question of at most {max_prompt_tokens} tokens")
    return QuestionSet(file.parent.name if file.name == "question.jsonl" else file.stem, tuple(prompts))


def _lines(file: Path) -> Sequence[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(str(file), f"is not a readable question file: {error}") from error
    return [line for line in text.splitlines() if line.strip()]


def _first_turn(file: Path, number: int, line: str) -> str:
    try:
        turns = json.loads(line)["turns"]
        first = turns[0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{file}:{number}", 'is no question: a JSON object with "turns" is expected') from error
    if not isinstance(first, str) or not first.strip():
        raise CheckpointError(f"{file}:{number}", "has an empty first turn")
    return first


def _encode(tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
    if tokenizer.has_chat_template:
        return tuple(tokenizer.render_chat([{"role": "user", "content": question}]))
    return tuple(tokenizer.encode(question))
