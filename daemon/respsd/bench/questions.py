"""Questions to measure on: files in EAGLE's `question.jsonl` form, or the project's own in `question_sets/`.

A question is a list of turns, what a user says one after another; each turn is asked with the model's own answers to
those before it. Most questions have one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import structlog

from respsd.engine.api import Tokenizer
from respsd.errors import CheckpointError

log = structlog.get_logger(__name__)

BUILT_IN = "built-in"
BUILT_IN_KINDS = ("chat", "code", "arithmetic", "summarising")
BUILT_IN_COUNT = 48
"""Questions in `question_sets/`, a dozen of each kind."""

Turns = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions of one file."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each question's first turn, by the model's chat template (plain text where it has none)."""
    turns: tuple[Turns, ...] = ()
    """Each question's turns as text, the first one included; empty where the prompts came as token ids."""

    def turns_of(self, question: int) -> Turns:
        """A question's turns; those of a prompt that came as token ids are unknown, and so empty."""
        return self.turns[question] if self.turns else ()

    def part(self, questions: slice) -> QuestionSet:
        """Some of the questions, under the same name."""
        return QuestionSet(self.name, self.prompts[questions], self.turns[questions])


def built_in(tokenizer: Tokenizer, limit: int | None = None) -> QuestionSet:
    """The project's own questions, the kinds in turn, the first `limit` of them."""
    turns = built_in_turns()[:limit]
    return QuestionSet(BUILT_IN, tuple(encode_turn(tokenizer, each[0]) for each in turns), turns)


def built_in_turns() -> tuple[Turns, ...]:
    """The turns of every built-in question: one of each kind, then the next one of each kind."""
    folder = resources.files("respsd.bench") / "question_sets"
    kinds = []
    for kind in BUILT_IN_KINDS:
        name = f"{kind}.jsonl"
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        kinds.append([_turns(name, number, line) for number, line in enumerate(lines, start=1)])
    return tuple(question for round_ in zip(*kinds, strict=True) for question in round_)


def question_sets(
    files: Sequence[Path], tokenizer: Tokenizer, *, limit: int, max_prompt_tokens: int
) -> list[QuestionSet]:
    """Each file's questions, or the built-in ones where there is no file."""
    sets = [read_questions(file, tokenizer, limit=limit, max_prompt_tokens=max_prompt_tokens) for file in files]
    if sets:
        return sets
    encoded = [(encode_turn(tokenizer, turns[0]), turns) for turns in built_in_turns()]
    fitting = [(prompt, turns) for prompt, turns in encoded if len(prompt) <= max_prompt_tokens][:limit]
    if not fitting:
        raise CheckpointError(BUILT_IN, f"the set holds no question of at most {max_prompt_tokens} tokens")
    return [QuestionSet(BUILT_IN, tuple(prompt for prompt, _ in fitting), tuple(turns for _, turns in fitting))]


def read_questions(
    file: Path, tokenizer: Tokenizer, *, limit: int | None = None, max_prompt_tokens: int | None = None
) -> QuestionSet:
    """The questions of a file, the first `limit` whose first turn is not longer than `max_prompt_tokens`.

    Raises CheckpointError naming file and line where a line is no question.
    """
    prompts: list[tuple[int, ...]] = []
    turns: list[Turns] = []
    too_long = 0
    for number, line in enumerate(_lines(file), start=1):
        if limit is not None and len(prompts) == limit:
            break
        asked = _turns(str(file), number, line)
        prompt = encode_turn(tokenizer, asked[0])
        if max_prompt_tokens is None or len(prompt) <= max_prompt_tokens:
            prompts.append(prompt)
            turns.append(asked)
        else:
            too_long += 1
    if too_long:
        log.info("questions_left_out", file=str(file), questions=too_long, longer_than_tokens=max_prompt_tokens)
    if not prompts:
        raise CheckpointError(str(file), f"holds no question of at most {max_prompt_tokens} tokens")
    name = file.parent.name if file.name == "question.jsonl" else file.stem
    return QuestionSet(name, tuple(prompts), tuple(turns))


def read_turns(file: Path) -> tuple[Turns, ...]:
    """The turns of every question of a file; raises CheckpointError as `read_questions`."""
    return tuple(_turns(str(file), number, line) for number, line in enumerate(_lines(file), start=1))


def encode_turn(tokenizer: Tokenizer, text: str, history: Sequence[tuple[str, str]] = ()) -> tuple[int, ...]:
    """Token ids of a turn after the turns and answers before it.

    :param history: earlier turns, each with the model's answer
    """
    if not tokenizer.has_chat_template:
        before = "".join(f"{turn}\n{answer}\n" for turn, answer in history)
        return tuple(tokenizer.encode(before + text))
    messages = []
    for turn, answer in history:
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return tuple(tokenizer.render_chat([*messages, {"role": "user", "content": text}]))


def _lines(file: Path) -> Sequence[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(str(file), f"is not a readable question file: {error}") from error
    return [line for line in text.split("\n") if line.strip()]  # JSON's text may hold other ends of lines


def _turns(file: str, number: int, line: str) -> Turns:
    try:
        turns = json.loads(line)["turns"]
        first = turns[0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{file}:{number}", 'is no question: a JSON object with "turns" is expected') from error
    if not isinstance(first, str) or not first.strip():
        raise CheckpointError(f"{file}:{number}", "has an empty first turn")
    if not all(isinstance(turn, str) for turn in turns):
        raise CheckpointError(f"{file}:{number}", "has a turn that is not text")
    return tuple(turns)
