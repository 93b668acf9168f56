"""Quoting: prompts about longer texts, which are the target's own prose answers to other prompts.

Text that is to be summarised or rewritten is what prompt sets without a licence problem have least of, and a drafter
that has not seen such prompts drafts worst for them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from respsd.drafter_training.answers import read_answers
from respsd.drafter_training.line_file import LineFile
from respsd.drafter_training.prompts import Skipped, first_turns, prompt_line
from respsd.errors import InvalidRequest, TrainingDataError

SOURCE = "quoted"
"""What a quoting prompt's `source` says."""
PLACE = "{}"
"""Where a template takes the text."""
DEFAULT_TEMPLATES = (
    "Summarize: {}",
    "Summarize: {}",
    "Summarize the following text: {}",
    "{}\n\nSummarize the text above.",
    "Write a short summary of this article: {}",
)
"""The plain form is twice as frequent as each other one."""
_FEWEST_CHARACTERS = 200
"""Shorter answers hold too little to ask about."""


@dataclass(frozen=True, slots=True)
class QuoteOptions:
    """Settings of a quoting run."""

    count: int
    """Prompts in the file at most."""
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    most_answers: int = 4
    """A prompt quotes from one to so many answers, one behind another."""
    seed: int = 0

    def validated(self) -> QuoteOptions:
        """Return self, or raise InvalidRequest naming the first field that is out of range."""
        for name, value in (("count", self.count), ("most_answers", self.most_answers)):
            if value < 1:
                raise InvalidRequest(name, value, "it must be at least 1")
        if not self.templates:
            raise InvalidRequest("template", self.templates, "at least one is needed")
        for template in self.templates:
            if template.count(PLACE) != 1:
                raise InvalidRequest("template", template, f"it must contain {PLACE} once, where the text goes")
        return self


@dataclass(frozen=True, slots=True)
class Quoted:
    """What a run did."""

    prompts: int
    prompts_before: int
    skipped: Skipped
    """Answers that were left out."""


class Decoder(Protocol):
    """The part of a tokenizer that quoting needs."""

    special_token_ids: frozenset[int]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


def quote(answer_files: Sequence[Path], output: Path, decoder: Decoder, options: QuoteOptions) -> Quoted:
    """Append prompts that quote the answers until `output` holds `options.count` or no answer is left.

    Each answer is quoted once at most; the same call with the same answers appends what is missing. Raises
    InvalidRequest and TrainingDataError.
    """
    options.validated()
    skipped = Skipped()
    passages = [text for file in answer_files for text in _passages(file, decoder, skipped)]
    if not passages:
        raise TrainingDataError(", ".join(map(str, answer_files)), f"no prose to quote; {skipped.describe('answer')}")
    with LineFile(output) as file:
        known = first_turns(output, Skipped())
        prompts = list(_prompts(passages, options))[: options.count]
        missing = [prompt for prompt in prompts if prompt not in known][: max(0, options.count - len(known))]
        file.append_lines([prompt_line(SOURCE, one) for one in missing])
    return Quoted(len(missing), len(known), skipped)


def _prompts(passages: Sequence[str], options: QuoteOptions) -> Iterator[str]:
    """The same for the same seed; each passage is used once."""
    rng = random.Random(options.seed)
    left = rng.sample(list(passages), len(passages))
    while left:
        count = rng.randint(1, options.most_answers)
        quoted, left = left[:count], left[count:]
        yield rng.choice(options.templates).replace(PLACE, " ".join(quoted))


def _passages(file: Path, decoder: Decoder, skipped: Skipped) -> Iterator[str]:
    """Answers as one paragraph of whole sentences each, without code."""
    for answer in read_answers(file, skipped):
        text = decoder.decode([token for token in answer.answer_ids if token not in decoder.special_token_ids])
        if "```" in text:
            skipped.count("with code")
            continue
        paragraph = whole_sentences(" ".join(text.split()))
        if len(paragraph) < _FEWEST_CHARACTERS:
            skipped.count(f"with less than {_FEWEST_CHARACTERS} characters of whole sentences")
            continue
        yield paragraph


def whole_sentences(paragraph: str) -> str:
    """The paragraph up to the end of its last sentence."""
    ends = [place for mark in ".!?" for place in (paragraph.rfind(f"{mark} "), _at_end(paragraph, mark))]
    return paragraph[: max(ends) + 1]


def _at_end(paragraph: str, mark: str) -> int:
    return len(paragraph) - 1 if paragraph.endswith(mark) else -1
