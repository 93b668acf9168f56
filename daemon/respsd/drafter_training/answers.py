"""Answer files: the target's own answers as token ids, one JSON object a line, appended and never rewritten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeGuard

from respsd.drafter_training.line_file import LineFile
from respsd.drafter_training.prompts import Skipped, read_lines


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt with what the target said to it."""

    source: str
    temperature: float
    prompt_ids: list[int]
    """The conversation so far as the chat template renders it, ready for the answer."""
    answer_ids: list[int]
    """With the token that ended it, unless it was cut at the limit."""

    @property
    def key(self) -> str:
        """Identity for resuming: the prompt's tokens and the temperature."""
        return answer_key(self.prompt_ids, self.temperature)


def answer_key(prompt_ids: Sequence[int], temperature: float) -> str:
    """The key of the answer to a prompt at a temperature."""
    text = f"{float(temperature)!r} {' '.join(map(str, prompt_ids))}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_answers(file: Path, skipped: Skipped) -> Iterator[Answer]:
    """The usable lines of an answer file (plain or gzipped) in order; the others are counted in `skipped`."""
    for line in read_lines(file):
        answer = _parse(line)
        if isinstance(answer, str):
            skipped.count(answer)
        else:
            yield answer


class AnswerFile(LineFile):
    """An answer file open for appending; each append is on the disk when it returns."""

    def append(self, answers: Sequence[Answer]) -> None:
        """Write whole lines and wait for the disk; on failure the file stays as it was."""
        self.append_lines([json.dumps(asdict(answer), separators=(",", ":")) for answer in answers])


def _parse(line: str) -> Answer | str:
    """The answer of a line, or why there is none."""
    if not line.strip():
        return "empty"
    try:
        value: object = json.loads(line)
    except ValueError:
        return "not JSON"
    if not isinstance(value, Mapping):
        return "no JSON object"
    prompt, answer, temperature = value.get("prompt_ids"), value.get("answer_ids"), value.get("temperature")
    if not (_is_token_ids(prompt) and _is_token_ids(answer)):
        return "without token ids"
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        return "without a temperature"
    return Answer(str(value.get("source", "answers")), float(temperature), prompt, answer)


def _is_token_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(one) is int and one >= 0 for one in value)
