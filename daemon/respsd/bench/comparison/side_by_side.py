"""The comparison: every block of questions under every method before the next block.

Machines are shared and their speed drifts, so only ratios within one run mean something. Each block is answered by
all methods at all concurrencies, in an order drawn anew for every block. With one stream a block is one question;
with several concurrencies it is as many questions as the largest, so that one stream and many answer the same ones.
One method is measured twice: the ratio of it to itself shows what this run's noise alone can do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from respsd.bench.comparison.answers import Decoder
from respsd.bench.comparison.conversation import AnswerRules, BlockResult, ask
from respsd.bench.questions import QuestionSet
from respsd.engine.api import Tokenizer

_WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to answer a block."""

    method: str
    concurrency: int
    again: bool = False
    """The second measurement of a method that is in the run already."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One block under one cell."""

    questions: str
    block: tuple[int, ...]
    """Numbers of its questions in the set."""
    cell: Cell
    result: BlockResult


def blocks(questions: int, size: int) -> list[tuple[int, ...]]:
    """Numbers of the questions in blocks of one size; the last one is filled up from the beginning."""
    return [tuple((first + place) % questions for place in range(size)) for first in range(0, questions, size)]


def compare(
    decoders: Mapping[Cell, Decoder],
    sets: Sequence[QuestionSet],
    tokenizer: Tokenizer,
    rules: AnswerRules,
    rng: random.Random,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Answer every set by every cell.

    :param rng: draws the order of the cells
    :param progress: told how many questions a block answered that none before it had, after each block
    """
    cells = list(decoders)
    size = max(cell.concurrency for cell in cells)
    warm_up(decoders, sets[0], tokenizer, rules)
    samples: list[Sample] = []
    for questions in sets:
        for block in blocks(len(questions.prompts), size):
            for cell in rng.sample(cells, len(cells)):
                result = ask(decoders[cell], tokenizer, questions, block, cell.concurrency, rules)
                samples.append(Sample(questions.name, block, cell, result))
            progress(min(size, len(questions.prompts) - block[0]))
    return samples


def warm_up(decoders: Mapping[Cell, Decoder], questions: QuestionSet, tokenizer: Tokenizer, rules: AnswerRules) -> None:
    """A short answer by every cell: first calls allocate, and may compile."""
    short = AnswerRules(min(_WARM_UP_TOKENS, rules.max_new_tokens), rules.context_length, ignore_eos=True, most_turns=1)
    for cell, decoder in decoders.items():
        ask(decoder, tokenizer, questions, blocks(1, cell.concurrency)[0], cell.concurrency, short)
