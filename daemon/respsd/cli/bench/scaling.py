"""`respsd bench scaling`: how a step's time grows with context and streams."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.bench.plot_option import PlotOption, check_plot
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.errors import InvalidRequest

if TYPE_CHECKING:
    from respsd.bench.scaling.measuring import Growth, PointTime


def scaling(
    *,
    actions: Annotated[str, typer.Option(help="off or TT:d:k, comma-separated.")] = "off,16:4:4",
    contexts: Annotated[
        str, typer.Option(help="Tokens of context, for one stream; the shortest also for more.")
    ] = "256,512,1024,2048,4096",
    streams: Annotated[str, typer.Option(help="Streams at the shortest context.")] = "1,2,4,8,16,32",
    steps: Annotated[int, typer.Option(min=1, help="Steps of a visit.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Visits of each point.")] = 3,
    seed: Annotated[int, typer.Option(help="Draws prompts and order.")] = 0,
    plot: PlotOption = None,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Measure a step's time against the length of the context and against the number of streams."""
    chosen = [Action.parse(each.strip().replace(":", ",")) for each in actions.split(",")]
    lengths, counts = _numbers("contexts", contexts), _numbers("streams", streams)
    check_plot(plot)
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )

    from respsd.bench.scaling.measuring import growth, measure_scaling, points
    from respsd.engine.loop import LoopLimits
    from respsd.telemetry.progress import ProgressReport

    loaded, short = models.load(settings), min(lengths)
    if loaded.drafter is None and any(not action.is_off for action in chosen):
        raise InvalidRequest("actions", actions, "without --drafter there is only 'off'")
    wanted = points(chosen, lengths, counts, short)
    with ProgressReport("points", len(wanted) * repeats, SystemClock()) as progress:
        times = measure_scaling(
            loaded,
            wanted,
            steps=steps,
            repeats=repeats,
            limits=LoopLimits(prefill_chunk=settings.engine.prefill_chunk),
            rng=random.Random(seed),
            progress=progress.advance,
            shapes=settings.engine.step_shapes,
        )
    lines = [*growth(times, "context", short), *growth(times, "streams", short)]
    if plot is not None:
        from respsd.bench.scaling.chart import draw_scaling

        draw_scaling(times, short, plot, f"{loaded.info.target}, {loaded.info.dtype} on {loaded.info.device}")
    if output is OutputFormat.JSON:
        print_json(
            {
                "target": loaded.info.target,
                "dtype": loaded.info.dtype,
                "device": loaded.info.device,
                "results": [_document(time) for time in times],
                "growth": [{**asdict(line), "action": str(line.action)} for line in lines],
            }
        )
    else:
        _print(times, lines)


def _numbers(name: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidRequest(name, text, "write positive whole numbers like 1,2,4")
    return sorted({int(part) for part in parts})


def _document(time: PointTime) -> dict[str, object]:
    """Durations are in milliseconds."""
    figures = {name: value for name, value in asdict(time).items() if name != "point"}
    point = time.point
    return {"action": str(point.action), "context": point.context, "streams": point.streams, **figures}


def _print(times: list[PointTime], lines: list[Growth]) -> None:
    headers = ("action", "context", "streams", "step p50 ms", "p10", "p90", "draft", "verify", "rest")
    rows = []
    for time in times:
        parts = (time.p50, time.p10, time.p90, time.draft, time.verify, time.other)
        rows.append((time.point.action, time.point.context, time.point.streams, *(f"{each:.1f}" for each in parts)))
    print_table(headers, rows)
    print_table(
        ("action", "over", "fixed ms", "more ms", "for each", "off the line by"),
        [
            (
                line.action,
                line.over,
                f"{line.fixed_ms:.1f}",
                f"{line.ms_per_unit:.2f}",
                "1,000 tokens" if line.over == "context" else "stream",
                f"{line.residual:.0%}",
            )
            for line in lines
        ],
    )
