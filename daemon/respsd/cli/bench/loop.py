"""`respsd bench loop`: what the whole loop makes of live traffic, against constant trees."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.cli.policy.reading import service_faults
from respsd.clock import SystemClock

if TYPE_CHECKING:
    from respsd.bench.comparison.run import BenchResult
    from respsd.bench.live.loop import LiveReport
    from respsd.bench.paired import PairedRatio
    from respsd.settings import Settings


def loop(
    *,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Of live traffic; 0 compares what is there.")] = 7.0,
    streams: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 4,
    limit: Annotated[int, typer.Option(min=1, help="Questions of each file that are compared on at the end.")] = 3,
    calibration: Annotated[int, typer.Option(min=1, help="Questions that the best constant is searched on.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer questions are not compared on.")] = 1024,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Kept, and gone on with by a later run.", show_default="a temporary folder"),
    ] = None,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a daemon whose champion is EAGLE-3's (60,7,10), let it learn from live questions, and measure the result.

    Exploring, updates and rollouts turn faster than by default; RESPSD_* variables override. Afterwards the champion,
    (60,7,10), the best constant of a sweep and plain decoding answer questions that were not in the traffic, in turns.
    """
    from respsd.bench.live.loop import run_live
    from respsd.bench.live.standing import METHODS, standing
    from respsd.cli.bench.compare import sweep_questions
    from respsd.telemetry.logging import configure_logging
    from respsd.telemetry.progress import ProgressReport

    flags = models.serve_flags(demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config)
    with ExitStack() as stack:
        folder = state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="respsd-loop-")))
        settings = models.model_settings(
            demo=demo,
            target=target,
            drafter=drafter,
            dtype=dtype,
            device=device,
            config=config,
            state_dir=folder,
        )
        configure_logging(settings.log.level, settings.log.format)
        kept_back = limit + sweep_questions(METHODS, calibration, questions or ())
        texts = _traffic_texts(questions or (), kept_back)
        with service_faults(str(folder)), ProgressReport("requests", len(texts), SystemClock()) as progress:
            live = run_live(
                flags,
                folder.resolve(),
                texts,
                seconds=60 * minutes,
                streams=streams,
                max_new_tokens=max_new_tokens,
                progress=lambda: progress.advance(1),
            )
        result = _compare(settings, questions or (), limit, calibration, max_new_tokens, max_prompt_tokens)
    ratios = standing(result)
    if output is OutputFormat.JSON:
        from respsd.bench.comparison.document import bench_document

        print_json({"live": _document(live), "champion": asdict(ratios), "comparison": bench_document(result)})
        return
    from respsd.cli.bench.tables import print_bench

    _print_live(live)
    print_bench(result)
    named = (("(60,7,10)", ratios.to_eagle3), ("the best constant", ratios.to_best_constant))
    for name, ratio in (*named, ("plain decoding", ratios.to_plain)):
        _print_ratio(name, ratio)


def _traffic_texts(files: Sequence[Path], kept_back: int) -> list[str]:
    """First turns of the questions that nothing is compared on, the files in turn; of a short file all."""
    from itertools import zip_longest

    from respsd.bench.questions import built_in_turns, read_turns

    sets = [read_turns(file) for file in files] or [built_in_turns()]
    rest = [[turns[0] for turns in each[kept_back:] or each] for each in sets]
    return [text for together in zip_longest(*rest) for text in together if text is not None]


def _compare(
    settings: Settings,
    files: Sequence[Path],
    limit: int,
    calibration: int,
    max_new_tokens: int,
    max_prompt_tokens: int,
) -> BenchResult:
    from respsd.bench.comparison.conversation import AnswerRules
    from respsd.bench.comparison.run import BenchOptions
    from respsd.bench.live.standing import METHODS
    from respsd.cli.bench.compare import compare_on

    loaded = models.load(settings)
    if loaded.drafter is None:
        print_message("no drafter: decoding is plain whatever the policy")
    rules = AnswerRules(max_new_tokens, loaded.info.context_length, most_turns=1)
    options = BenchOptions(METHODS, (1,), rules, calibration, exact=settings.engine.exact)
    return compare_on(files, settings, loaded, options, limit=limit, max_prompt_tokens=max_prompt_tokens)


def _document(live: LiveReport) -> dict[str, object]:
    action = live.champion_action
    return {**asdict(live), "champion_action": None if action is None else str(action)}


def _print_live(live: LiveReport) -> None:
    rows = [(f"{each.from_seconds:.0f}", f"{each.tokens_per_second:.1f}") for each in live.slices]
    print_table(("from second", "tokens/s, all streams"), rows)
    updates = ", ".join(f"{count} {how}" for how, count in sorted(live.updates.items())) or "none"
    print_message(f"{live.requests} requests, {live.tokens} tokens in {live.seconds:.0f} s; updates: {updates}")
    for move in live.moves:
        what = f"{move.event} {'' if move.from_version is None else f'{move.from_version} -> '}{move.to_version}"
        print_message(f"{move.at[11:19]} {what}, by {move.actor}: {move.reason}")
    constant = "a learned policy" if live.champion_action is None else f"always {live.champion_action}"
    print_message(f"the champion is version {live.champion}, {constant}")


def _print_ratio(name: str, ratio: PairedRatio | None) -> None:
    if ratio is None:
        print_message(f"champion against {name}: no pair")
        return
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
    print_message(f"champion against {name}: {ratio.ratio:.2f} times as fast ({interval}, p {ratio.p:.2g})")
