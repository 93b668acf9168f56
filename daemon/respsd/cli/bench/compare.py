"""`respsd bench` without a sub-command: several ways to decode, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.bench.comparison.methods import Kind, Method, parse_concurrencies, parse_methods
from respsd.cli import models
from respsd.cli.bench.plot_option import PlotOption, check_plot
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message
from respsd.clock import SystemClock
from respsd.errors import InvalidRequest
from respsd.paths import CALIBRATIONS

if TYPE_CHECKING:
    from respsd.bench.comparison.arena import ArenaOptions
    from respsd.bench.comparison.run import BenchOptions, BenchResult
    from respsd.control.batch_plan import BatchPlan
    from respsd.engine.assembly import Models
    from respsd.settings import Settings

_MOST_STREAMS = 64
"""A calibrated baseline is planned for so many: more than the daemon would run may be measured."""


def bench(
    context: typer.Context,
    *,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated: transformers, assisted:MODEL, prompt-lookup[:TOKENS], off, eagle3, TT:d:k, "
            "sweep (the best constant action), calibrated (what `respsd calibrate` found), policy:VERSION or "
            "policy:ALIAS; ratios are to the first."
        ),
    ] = "transformers,off,16:4:4,eagle3",
    concurrency: Annotated[str, typer.Option(help="Streams at a time, comma-separated.")] = "1",
    limit: Annotated[int, typer.Option(min=1, help="Questions of each file.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer questions are left out.")] = 1024,
    turns: Annotated[
        int | None, typer.Option(min=1, help="Turns of a question that are asked.", show_default="all")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let every answer have all its tokens: streams end together.")
    ] = False,
    calibration: Annotated[
        int, typer.Option(min=1, help="Questions that `sweep` searches on; they are not measured.")
    ] = 4,
    null_check: Annotated[
        bool, typer.Option(help="Measure plain decoding twice: its ratio to itself is the noise.")
    ] = True,
    exact: models.ExactOption = None,
    seed: Annotated[int, typer.Option(help="Draws the order of the methods.")] = 0,
    plot: PlotOption = None,
    state_dir: models.StateDirOption = None,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Measure decoding: tokens/s and latency of several methods on the same questions, greedily, in turns.

    Every question is answered by every method before the next one, in random order, so that a busy machine
    disturbs all of them alike. Sub-commands measure a running daemon (serve), one that learns (loop), how a
    step's time grows (scaling), how evenly tokens come (latency), and a GPU (gpu-check).
    """
    if context.invoked_subcommand is not None:
        _refuse_flags(context)
        return
    chosen, streams = parse_methods(methods), parse_concurrencies(concurrency)
    check_plot(plot)
    settings = models.model_settings(
        demo=demo,
        target=target,
        drafter=drafter,
        dtype=dtype,
        device=device,
        config=config,
        state_dir=state_dir,
        engine={"exact": exact},
    )

    from respsd.bench.comparison.conversation import AnswerRules
    from respsd.bench.comparison.document import bench_document
    from respsd.bench.comparison.run import BenchOptions
    from respsd.cli.bench.tables import print_bench

    loaded = models.load(settings)
    if loaded.drafter is None and any(not method.is_transformers for method in chosen):
        print_message("no drafter: our engine decodes plainly whatever the method")
    rules = AnswerRules(max_new_tokens, loaded.info.context_length, ignore_eos=ignore_eos, most_turns=turns)
    options = BenchOptions(chosen, streams, rules, calibration, null_check, seed, settings.engine.exact)
    result = compare_on(questions or (), settings, loaded, options, limit=limit, max_prompt_tokens=max_prompt_tokens)
    if plot is not None:
        from respsd.bench.comparison.chart import draw_bench

        draw_bench(result, plot)
    if output is OutputFormat.JSON:
        print_json(bench_document(result))
    else:
        print_bench(result)


def _refuse_flags(context: typer.Context) -> None:
    """Flags before a sub-command's name would do nothing."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            flag = name.replace("_", "-")
            raise typer.BadParameter(f"--{flag} belongs behind the sub-command's name, or to `respsd bench` alone")


def compare_on(
    files: Sequence[Path],
    settings: Settings,
    loaded: Models,
    options: BenchOptions,
    *,
    limit: int,
    max_prompt_tokens: int,
) -> BenchResult:
    """Run the comparison on the first questions of some files, or of the built-in set.

    :param limit: questions of each that are measured; those of a sweep come on top
    """
    from respsd.bench.comparison.run import run_bench
    from respsd.bench.questions import question_sets
    from respsd.telemetry.progress import ProgressReport

    methods = options.methods
    arena = arena_options(settings, methods, max(options.concurrencies), calibrated_plan(settings, loaded, methods))
    extra = sweep_questions(methods, options.calibration_questions, files)
    longest = min(max_prompt_tokens, loaded.info.context_length - options.rules.max_new_tokens)
    sets = question_sets(files, loaded.tokenizer, limit=limit + extra, max_prompt_tokens=longest)
    measured = sum(len(each.prompts) - extra for each in sets)
    with ProgressReport("questions", measured, SystemClock()) as progress:
        return run_bench(loaded, sets, arena, options, progress.advance)


def sweep_questions(methods: Sequence[Method], calibration: int, files: Sequence[Path]) -> int:
    """Questions that a sweep takes from the end of each set, which are to come on top of those that are measured."""
    return math.ceil(calibration / max(1, len(files))) if _has(Kind.SWEEP, methods) else 0


def _has(kind: Kind, methods: Sequence[Method]) -> bool:
    return any(method.kind is kind for method in methods)


def calibrated_plan(settings: Settings, loaded: Models, methods: Sequence[Method]) -> BatchPlan | None:
    """The calibrated baseline; raises InvalidRequest where a method needs it and it is not there."""
    if not _has(Kind.CALIBRATED, methods) and not _has(Kind.POLICY, methods):
        return None
    from respsd.calibration.measure import setup_of
    from respsd.calibration.record import CalibrationFiles

    table, found = settings.control.table(), None
    if loaded.drafter is not None:
        files = CalibrationFiles(settings.state_dir / CALIBRATIONS)
        found = files.load(setup_of(loaded, settings.engine.step_shapes), table.largest)
    if found is None and _has(Kind.CALIBRATED, methods):
        where = f"{settings.state_dir} holds no calibration of these models on this machine; run `respsd calibrate`"
        raise InvalidRequest("methods", Kind.CALIBRATED.value, where)
    return None if found is None else found.plan(table, max(settings.engine.max_running, _MOST_STREAMS))


def arena_options(
    settings: Settings, methods: Sequence[Method], most_streams: int, plan: BatchPlan | None
) -> ArenaOptions:
    """Where these methods meet, as the settings say; raises what reading the stored policies raises."""
    from respsd.bench.comparison.arena import ArenaOptions
    from respsd.bench.comparison.stored_policies import read_policies
    from respsd.daemon import loop_limits
    from respsd.models.named import target_folder
    from respsd.models.target import resolve_checkpoint

    names = [method.policy for method in methods if method.policy is not None]
    assistant = next((method.assistant for method in methods if method.assistant is not None), None)
    return ArenaOptions(
        target_folder=target_folder(settings),
        assistant_folder=None if assistant is None else resolve_checkpoint(assistant),
        most_streams=most_streams,
        persistence=settings.control.persistence,
        limits=loop_limits(settings),
        shapes=settings.engine.step_shapes,
        table=settings.control.table(),
        plan=plan,
        policies=read_policies(settings.state_dir, names) if names else None,
        policy_temperature=settings.control.sampling_temperature,
    )
