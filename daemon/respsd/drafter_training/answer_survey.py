"""One pass over answer files that finds what training must know of all of them, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from respsd.drafter_training.answers import Answer, read_answers
from respsd.drafter_training.prompts import Skipped
from respsd.errors import TrainingDataError


@dataclass(frozen=True, slots=True)
class AnswerSurvey:
    """Figures of all usable answers."""

    answers: int
    token_counts: Tensor  # int64 [vocab]: how often each token stands in an answer
    common_prefix: int
    """Tokens with which every prompt begins (a system message, say)."""


@dataclass(frozen=True, slots=True)
class AnswerFiles:
    """Several answer files, read again for each pass."""

    files: Sequence[Path]
    max_tokens: int
    """Prompts with answers that are longer are left out."""

    def __iter__(self) -> Iterator[Answer]:
        """The usable answers, in order."""
        return self.read(Skipped())

    def read(self, skipped: Skipped) -> Iterator[Answer]:
        """The usable answers, in order; the others are counted."""
        for file in self.files:
            for answer in read_answers(file, skipped):
                if len(answer.prompt_ids) + len(answer.answer_ids) > self.max_tokens:
                    skipped.count(f"longer than {self.max_tokens} tokens")
                else:
                    yield answer

    def survey(self, vocab_size: int, skipped: Skipped) -> AnswerSurvey:
        """Look at every answer; raises TrainingDataError where none is usable or one is of another vocabulary."""
        names = ", ".join(map(str, self.files))
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        prefix = CommonPrefix()
        answers = 0
        for answer in self.read(skipped):
            if max(*answer.prompt_ids, *answer.answer_ids) >= vocab_size:
                raise TrainingDataError(names, f"answer {answers + 1} has token ids beyond the target's {vocab_size}")
            counts += torch.bincount(torch.tensor(answer.answer_ids), minlength=vocab_size)
            prefix.add(answer.prompt_ids)
            answers += 1
        if not answers:
            raise TrainingDataError(names, f"no usable answer; {skipped.describe()}")
        return AnswerSurvey(answers, counts, prefix.length)


class CommonPrefix:
    """The beginning that all sequences share."""

    def __init__(self) -> None:
        self._tokens: Sequence[int] | None = None

    @property
    def length(self) -> int:
        """Its tokens; 0 before the first sequence."""
        return len(self._tokens or ())

    def add(self, tokens: Sequence[int]) -> None:
        """Take another sequence into account."""
        if self._tokens is None:
            self._tokens = list(tokens)
            return
        same = 0
        for one, other in zip(self._tokens, tokens, strict=False):
            if one != other:
                break
            same += 1
        self._tokens = self._tokens[:same]


def parts(answers: Iterable[Answer], size: int) -> Iterator[list[Answer]]:
    """Consecutive groups of `size` answers; the last may be smaller."""
    part: list[Answer] = []
    for answer in answers:
        part.append(answer)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part
