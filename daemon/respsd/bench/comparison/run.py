"""One whole benchmark: start the methods, find the sweep's action, compare, sum up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from respsd import __version__
from respsd.bench.comparison.answers import Decoder
from respsd.bench.comparison.arena import Arena, ArenaOptions, open_arena
from respsd.bench.comparison.conversation import AnswerRules
from respsd.bench.comparison.methods import Kind, Method, plain_method
from respsd.bench.comparison.report import Row, noise, summarise
from respsd.bench.comparison.side_by_side import Cell, blocks, compare, warm_up
from respsd.bench.comparison.sweep import SweepReport, measure_with, split_for_calibration, sweep
from respsd.bench.paired import PairedRatio
from respsd.bench.questions import QuestionSet
from respsd.control.action import Action
from respsd.engine.assembly import Models


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What is compared, and how."""

    methods: Sequence[Method]
    concurrencies: Sequence[int]
    rules: AnswerRules
    calibration_questions: int = 4
    """Of SWEEP, taken from the ends of the sets."""
    null_check: bool = True
    """Measure plain decoding twice."""
    seed: int = 0
    """Draws the order of the methods."""
    exact: bool = False
    """Whether the models were loaded so that verification and plain decoding agree bit for bit; for the record."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Everything that a benchmark found."""

    version: str
    target: str
    drafter: str | None
    dtype: str
    device: str
    threads: int
    exact: bool
    """Whether our engine's verification and plain decoding agree bit for bit."""
    max_new_tokens: int
    first: str
    """The method that ratios are to."""
    plain: str
    """The method whose answers outputs are compared with."""
    actions: dict[tuple[str, int], Action]
    """Of the methods with a constant action, by name and concurrency."""
    rows: tuple[Row, ...]
    noise: tuple[tuple[Cell, PairedRatio], ...]
    sweeps: tuple[SweepReport, ...]
    skipped: tuple[Cell, ...]
    """What a method cannot do."""

    def label(self, row: Row) -> str:
        """The row's method, with the action that its name does not tell."""
        action = self.actions.get((row.method, row.concurrency))
        told = action is None or str(action) == row.method.replace(":", ",")
        return row.method if told else f"{row.method} ({action})"


def run_bench(
    models: Models,
    sets: Sequence[QuestionSet],
    arena_options: ArenaOptions,
    options: BenchOptions,
    progress: Callable[[int], None] = lambda _: None,
) -> BenchResult:
    """Run it. :param progress: told of newly answered questions, after each block."""
    rng = random.Random(options.seed)
    measured: list[QuestionSet] = list(sets)
    calibration: list[QuestionSet] = []
    if any(method.kind is Kind.SWEEP for method in options.methods):
        measured, calibration = split_for_calibration(sets, options.calibration_questions)
    plain = plain_method(options.methods)
    cells = _cells(options, plain)
    with open_arena(models, options.methods, arena_options) as arena:
        sweeps = _sweeps(models, calibration, arena, arena_options, options, rng)
        actions = _actions(options, sweeps)
        decoders = _decoders(arena, options.methods, cells, actions)
        samples = compare(decoders, measured, models.tokenizer, options.rules, rng, progress)
    return BenchResult(
        version=__version__,
        target=models.info.target,
        drafter=models.info.drafter,
        dtype=models.info.dtype,
        device=models.info.device,
        threads=torch.get_num_threads(),
        exact=options.exact,
        max_new_tokens=options.rules.max_new_tokens,
        first=options.methods[0].name,
        plain=plain.name,
        actions=actions,
        rows=tuple(summarise(samples, [cell for cell in cells if not cell.again], plain.name)),
        noise=tuple(noise(samples, cells)),
        sweeps=sweeps,
        skipped=tuple(
            Cell(method.name, concurrency)
            for concurrency in options.concurrencies
            for method in options.methods
            if not method.serves(concurrency)
        ),
    )


def _cells(options: BenchOptions, plain: Method) -> list[Cell]:
    cells = [
        Cell(method.name, concurrency)
        for concurrency in options.concurrencies
        for method in options.methods
        if method.serves(concurrency)
    ]
    if options.null_check:
        cells += [
            Cell(plain.name, concurrency, again=True)
            for concurrency in options.concurrencies
            if plain.serves(concurrency)
        ]
    return cells


def _sweeps(
    models: Models,
    calibration: Sequence[QuestionSet],
    arena: Arena,
    arena_options: ArenaOptions,
    options: BenchOptions,
    rng: random.Random,
) -> tuple[SweepReport, ...]:
    reports = []
    for concurrency in options.concurrencies if calibration else ():
        parts = [(each, block) for each in calibration for block in blocks(len(each.prompts), concurrency)]
        warm = {Cell(str(action), concurrency): arena.constant(action) for action in arena_options.table.actions[:1]}
        warm_up(warm, calibration[0], models.tokenizer, options.rules)
        measure = measure_with(arena.constant, models.tokenizer, options.rules, concurrency)
        reports.append(sweep(arena_options.table, parts, concurrency, measure, rng))
    return tuple(reports)


def _actions(options: BenchOptions, sweeps: Sequence[SweepReport]) -> dict[tuple[str, int], Action]:
    found = {report.concurrency: report.best for report in sweeps}
    actions: dict[tuple[str, int], Action] = {}
    for method in options.methods:
        for concurrency in options.concurrencies:
            action = found[concurrency] if method.kind is Kind.SWEEP else method.action
            if action is not None:
                actions[method.name, concurrency] = action
    return actions


def _decoders(
    arena: Arena, methods: Sequence[Method], cells: Sequence[Cell], actions: dict[tuple[str, int], Action]
) -> dict[Cell, Decoder]:
    by_name = {method.name: method for method in methods}
    return {cell: arena.decoder(by_name[cell.method], actions.get((cell.method, cell.concurrency))) for cell in cells}
