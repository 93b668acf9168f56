"""Answer files: the target's own answers as token ids, one JSON object a line, appended and never rewritten.

A line is whole or does not exist: what a kill or a full disk left behind the last newline is cut off before anything
is appended, and a failed append is undone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeGuard

from respsd.drafter_training.prompts import Skipped, read_lines
from respsd.errors import TrainingDataError


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


class AnswerFile:
    """An answer file open for appending; each append is on the disk when it returns."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raises TrainingDataError where that fails."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b", buffering=0)
            self._end = _end_of_last_line(self._file)
            self._file.truncate(self._end)
            self._file.seek(self._end)
        except OSError as error:
            raise TrainingDataError(str(path), f"cannot be opened for appending: {error}") from error

    def append(self, answers: Sequence[Answer]) -> None:
        """Write whole lines and wait for the disk; on failure the file stays as it was."""
        lines = "".join(json.dumps(asdict(answer), separators=(",", ":")) + "\n" for answer in answers).encode()
        try:
            written = 0
            while written < len(lines):
                written += self._file.write(lines[written:])
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._end)
            self._file.seek(self._end)
            raise TrainingDataError(
                str(self.path), f"cannot be appended to: {error}; what was written before is kept, run again to go on"
            ) from error
        self._end += len(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end_of_last_line(file: BinaryIO, block: int = 1 << 16) -> int:
    """Offset behind the last newline; 0 where there is none."""
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        found = file.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


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
