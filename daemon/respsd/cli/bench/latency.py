"""`respsd bench latency`: how evenly tokens come to many streams, and while a long prompt arrives."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.errors import InvalidRequest

if TYPE_CHECKING:
    from respsd.bench.latency.measuring import Gaps, Latency


def latency(
    *,
    actions: Annotated[str, typer.Option(help="off or TT:d:k, comma-separated.")] = "off",
    streams: Annotated[int, typer.Option(min=1, help="Streams that decode.")] = 32,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each stream's prompt.")] = 64,
    arriving: Annotated[int, typer.Option(min=1, help="Tokens of the prompt that arrives.")] = 4000,
    steps: Annotated[int, typer.Option(min=1, help="Deliveries of each stream before each arrival.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Arrivals.")] = 2,
    seed: Annotated[int, typer.Option(help="Draws the prompts.")] = 0,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Measure the time between two deliveries of a stream: its p99 beside its p50, and how long prompts delay it."""
    chosen = [Action.parse(each.strip().replace(":", ",")) for each in actions.split(",")]
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )

    from respsd.bench.latency.measuring import LatencyPlan, measure_latency
    from respsd.daemon import loop_limits
    from respsd.telemetry.progress import ProgressReport

    loaded = models.load(settings)
    if loaded.drafter is None and any(not action.is_off for action in chosen):
        raise InvalidRequest("actions", actions, "without --drafter there is only 'off'")
    limits = loop_limits(settings)
    found: dict[Action, Latency] = {}
    with ProgressReport("arrivals", repeats * len(chosen), SystemClock()) as progress:
        for action in chosen:
            plan = LatencyPlan(action, streams, context, arriving, steps, repeats)
            found[action] = measure_latency(
                loaded, plan, limits, random.Random(seed), progress.advance, settings.engine.step_shapes
            )
    if output is OutputFormat.JSON:
        described = {
            "target": loaded.info.target,
            "dtype": loaded.info.dtype,
            "device": loaded.info.device,
            "streams": streams,
            "arriving": arriving,
        }
        print_json({**described, "results": [_document(action, latency) for action, latency in found.items()]})
    else:
        _print(found)


def _document(action: Action, latency: Latency) -> dict[str, object]:
    """Durations are in seconds."""
    return {"action": str(action), "p99_over_p50": latency.spread, "delay": latency.delay, **asdict(latency)}


def _print(found: dict[Action, Latency]) -> None:
    rows = []
    for action, latency in found.items():
        for name in ("joining", "steady", "arriving"):
            gaps: Gaps = getattr(latency, name)
            times = (gaps.times.p50, gaps.times.p90, gaps.times.p99, gaps.longest)
            rows.append((action, name, gaps.count, *(f"{each * 1e3:.1f}" for each in times)))
    print_table(("action", "while", "gaps", "p50 ms", "p90", "p99", "longest"), rows)
    for action, latency in found.items():
        print_message(
            f"{action}: p99 is {latency.spread:.2f} times p50; while a prompt arrives p99 is {latency.delay:.2f} times "
            f"the steady p50, and its own first token takes {latency.first_token:.1f} s"
        )
