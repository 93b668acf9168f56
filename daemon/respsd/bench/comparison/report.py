"""Samples of a comparison, summed up: one row for each question set, method and concurrency, and one over all sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from respsd.bench.comparison.answers import Answer
from respsd.bench.comparison.side_by_side import Cell, Sample
from respsd.bench.comparison.speed import decode_speed, whole_speed
from respsd.bench.comparison.step_figures import StepFigures, step_figures
from respsd.bench.paired import PairedRatio, paired_ratio
from respsd.bench.percentiles import Percentiles

ALL_SETS = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one concurrency on one question set (or on all of them)."""

    questions: str
    method: str
    concurrency: int
    tokens_per_second: float
    """One stream: of its decoding. Several: all their tokens over the whole time."""
    whole_tokens_per_second: float
    """All tokens over the time from prompt to last token."""
    ratio: PairedRatio | None
    """Of `tokens_per_second` to the first method's at this concurrency; None without a pair.

    Paired by question for one stream, by block for several.
    """
    whole_ratio: PairedRatio | None
    """Likewise, of `whole_tokens_per_second`, paired by block."""
    ratio_to_one_stream: PairedRatio | None
    """Of `whole_tokens_per_second` to the same method's with one stream, where that was measured."""
    tau: float
    """Mean tokens of a delivery after the first: committed tokens of a step."""
    time_to_first_token: Percentiles | None
    inter_token_latency: Percentiles | None
    """Between two deliveries of one stream."""
    equal_outputs: float
    """Share of questions whose tokens, in every turn, are plain decoding's."""
    answers: int
    tokens: int
    steps: StepFigures | None
    """Of our engine."""


def summarise(samples: Sequence[Sample], cells: Sequence[Cell], plain: str) -> list[Row]:
    """A row for each set and cell in order, then those over all sets where there are several.

    :param cells: of these samples; the first one's method is what ratios are to
    :param plain: the method whose answers, at the lowest concurrency, are plain decoding's
    """
    names = list(dict.fromkeys(sample.questions for sample in samples))
    groups = [(name, [sample for sample in samples if sample.questions == name]) for name in names]
    if len(names) > 1:
        groups.append((ALL_SETS, list(samples)))
    reference = _plain_answers(samples, plain)
    return [
        row
        for name, group in groups
        for cell in cells
        if (row := _row(name, _by_block(group), cell, cells[0].method, reference)) is not None
    ]


def noise(samples: Sequence[Sample], cells: Sequence[Cell]) -> list[tuple[Cell, PairedRatio]]:
    """The ratio of each method that was measured twice to itself, over all sets."""
    blocks = _by_block(samples)
    return [
        (cell, ratio)
        for cell in cells
        if cell.again and (ratio := _speed_ratio(blocks, cell, Cell(cell.method, cell.concurrency))) is not None
    ]


Blocks = Mapping[tuple[str, tuple[int, ...]], Mapping[Cell, Sample]]
"""Samples by set and block, then by cell."""


def _by_block(samples: Sequence[Sample]) -> Blocks:
    found: dict[tuple[str, tuple[int, ...]], dict[Cell, Sample]] = {}
    for sample in samples:
        found.setdefault((sample.questions, sample.block), {})[sample.cell] = sample
    return found


def _row(name: str, blocks: Blocks, cell: Cell, first: str, plain: Mapping[tuple[str, int], Tokens]) -> Row | None:
    mine = [block[cell] for block in blocks.values() if cell in block]
    answers = [answer for sample in mine for turns in sample.result.answers for answer in turns]
    per_stream = decode_speed(answers)
    if per_stream is None:  # every answer ended with its first token: there was nothing to measure
        return None
    tokens, seconds = sum(sample.result.tokens for sample in mine), sum(sample.result.seconds for sample in mine)
    deliveries = sum(len(answer.deliveries) - 1 for answer in answers)
    reference = Cell(first, cell.concurrency)
    one = Cell(cell.method, 1)
    return Row(
        questions=name,
        method=cell.method,
        concurrency=cell.concurrency,
        tokens_per_second=per_stream if cell.concurrency == 1 else tokens / seconds,
        whole_tokens_per_second=tokens / seconds,
        ratio=_speed_ratio(blocks, cell, reference),
        whole_ratio=_whole_ratio(blocks, cell, reference),
        ratio_to_one_stream=_whole_ratio(blocks, cell, one) if cell.concurrency > 1 else None,
        tau=sum(answer.decoded_tokens for answer in answers) / deliveries,
        time_to_first_token=Percentiles.of([answer.time_to_first_token for answer in answers]),
        inter_token_latency=Percentiles.of([gap for answer in answers for gap in answer.gaps]),
        equal_outputs=_share_equal(mine, plain),
        answers=len(answers),
        tokens=tokens,
        steps=step_figures([sample.result for sample in mine]),
    )


def _speed_ratio(blocks: Blocks, cell: Cell, reference: Cell) -> PairedRatio | None:
    """Both at the same concurrency: paired by question for one stream, by block for several."""
    pairs = []
    for block in blocks.values():
        if cell in block and reference in block:
            speeds = zip(_speeds(block[cell]), _speeds(block[reference]), strict=True)
            pairs += [(mine, theirs) for mine, theirs in speeds if mine is not None and theirs is not None]
    return _ratio(pairs)


def _speeds(sample: Sample) -> list[float | None]:
    if sample.cell.concurrency == 1:
        return [decode_speed(turns) for turns in sample.result.answers]
    return [whole_speed(sample.result)]


def _whole_ratio(blocks: Blocks, cell: Cell, reference: Cell) -> PairedRatio | None:
    return _ratio(
        [
            (whole_speed(block[cell].result), whole_speed(block[reference].result))
            for block in blocks.values()
            if cell in block and reference in block
        ]
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> PairedRatio | None:
    return paired_ratio([mine for mine, _ in pairs], [theirs for _, theirs in pairs]) if pairs else None


Tokens = tuple[tuple[int, ...], ...]
"""Of one question, by turn."""


def _plain_answers(samples: Sequence[Sample], plain: str) -> dict[tuple[str, int], Tokens]:
    """Plain decoding's answers by set and question, from its lowest concurrency."""
    lowest = min(sample.cell.concurrency for sample in samples if sample.cell.method == plain)
    cell = Cell(plain, lowest)
    return {
        (sample.questions, question): _tokens(turns)
        for sample in samples
        if sample.cell == cell
        for question, turns in zip(sample.block, sample.result.answers, strict=True)
    }


def _share_equal(samples: Sequence[Sample], plain: Mapping[tuple[str, int], Tokens]) -> float:
    same = [
        _tokens(turns) == plain[sample.questions, question]
        for sample in samples
        for question, turns in zip(sample.block, sample.result.answers, strict=True)
    ]
    return sum(same) / len(same)


def _tokens(turns: Sequence[Answer]) -> Tokens:
    return tuple(answer.token_ids for answer in turns)
