"""Prompt files: one JSON object a line with `prompt`, `turns` or `messages`, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from respsd.errors import TrainingDataError

_ROLES = frozenset({"system", "user", "assistant"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the target is asked: messages that stand already, then user turns that it answers one after another."""

    source: str
    opening: tuple[Mapping[str, str], ...]
    """Given messages before the first turn."""
    turns: tuple[str, ...]
    """User turns, at least one."""


@dataclass(slots=True)
class Skipped:
    """Lines, or what else was read, that could not be used, counted by reason."""

    reasons: Counter[str] = field(default_factory=Counter)

    def count(self, reason: str, lines: int = 1) -> None:
        """Note lines that were left out."""
        self.reasons[reason] += lines

    @property
    def total(self) -> int:
        """All lines left out."""
        return self.reasons.total()

    def describe(self, noun: str = "line") -> str:
        """`3 lines skipped (2 empty, 1 no JSON object)`, or `no line skipped`."""
        if not self.total:
            return f"no {noun} skipped"
        reasons = ", ".join(f"{lines} {reason}" for reason, lines in self.reasons.most_common())
        return f"{self.total} {noun}{'s' if self.total > 1 else ''} skipped ({reasons})"


def read_conversations(file: Path, skipped: Skipped) -> Iterator[Conversation]:
    """The usable lines of a prompt file in order; the others are counted in `skipped`.

    Raises TrainingDataError where the file cannot be read at all.
    """
    for line in read_lines(file):
        conversation = _parse(line)
        if isinstance(conversation, str):
            skipped.count(conversation)
        else:
            yield conversation


def first_turns(file: Path, skipped: Skipped) -> set[str]:
    """The different prompts that a file holds already."""
    return {one.turns[0] for one in read_conversations(file, skipped)}


def prompt_line(source: str, prompt: str) -> str:
    """A prompt as its line of a file, without the newline."""
    return json.dumps({"source": source, "prompt": prompt}, ensure_ascii=False)


def read_lines(file: Path) -> Iterator[str]:
    """Lines of a text file or a gzipped one; raises TrainingDataError where it is neither."""
    try:
        with _open(file) as lines:
            yield from lines
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TrainingDataError(str(file), f"is not readable: {error}") from error


def _open(file: Path) -> TextIO:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def _parse(line: str) -> Conversation | str:
    """The conversation of a line, or why there is none."""
    if not line.strip():
        return "empty"
    try:
        value: object = json.loads(line)
    except ValueError:
        return "not JSON"
    if not isinstance(value, Mapping):
        return "no JSON object"
    source = str(value.get("source", "prompts"))
    if "messages" in value:
        return _from_messages(source, value["messages"])
    turns = value["turns"] if "turns" in value else [value.get("prompt")]
    if not isinstance(turns, list) or not turns or not all(isinstance(one, str) and one.strip() for one in turns):
        return "without a prompt"
    return Conversation(source, (), tuple(turns))


def _from_messages(source: str, messages: object) -> Conversation | str:
    if not isinstance(messages, list) or not messages:
        return "without a prompt"
    for one in messages:
        if not isinstance(one, Mapping) or one.get("role") not in _ROLES or not isinstance(one.get("content"), str):
            return "with malformed messages"
    *opening, last = messages
    if last["role"] != "user":
        return "that does not end with the user"
    kept = tuple({"role": str(one["role"]), "content": str(one["content"])} for one in opening)
    return Conversation(source, kept, (str(last["content"]),))
