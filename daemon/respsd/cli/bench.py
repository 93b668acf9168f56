"""`respsd bench`: tokens per second of several ways to decode, side by side on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli import models
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.clock import SystemClock
from respsd.control.action import EAGLE3, OFF, Action
from respsd.errors import InvalidRequest

if TYPE_CHECKING:
    from respsd.bench.speed import Measurement


def bench(
    *,
    questions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="question.jsonl files (repeat).", exists=True, show_default="built-in set"),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="off, eagle3 or TT:d:k, comma-separated; ratios are to the first.")
    ] = "off,eagle3,16:4:4",
    limit: Annotated[int, typer.Option(min=1, help="Questions of each file.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer at most.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer questions are left out.")] = 1024,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    drafter: models.DrafterOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Answer every question by every method in turn and print tokens/s and ratios (greedy, one stream)."""
    actions = [_action(method) for method in methods.split(",")]
    settings = models.model_settings(
        demo=demo, target=target, drafter=drafter, dtype=dtype, device=device, config=config
    )

    from respsd.bench.questions import question_sets
    from respsd.bench.speed import measure
    from respsd.telemetry.progress import ProgressReport

    loaded = models.load(settings)
    sets = question_sets(questions or (), loaded.tokenizer, limit=limit, max_prompt_tokens=max_prompt_tokens)
    with ProgressReport("questions", sum(len(each.prompts) for each in sets), SystemClock()) as progress:
        results = measure(loaded, sets, actions, max_new_tokens, progress=lambda: progress.advance(1))
    if output is OutputFormat.JSON:
        print_json({"dtype": loaded.info.dtype, "results": [_document(result) for result in results]})
    else:
        _print(results)


def _action(method: str) -> Action:
    match method.strip():
        case "off":
            return OFF
        case "eagle3":
            return EAGLE3
        case shape if shape.count(":") == 2:
            return Action.parse(shape.replace(":", ","))
        case other:
            raise InvalidRequest("methods", other, "known are off, eagle3 and TT:d:k")


def _document(result: Measurement) -> dict[str, object]:
    return {**asdict(result), "action": str(result.action)}


def _print(results: list[Measurement]) -> None:
    headers = ("questions", "action", "tokens/s", "ratio", "interval", "tau", "equal outputs")
    rows = [
        (
            result.questions,
            result.action,
            f"{result.tokens_per_second:.1f}",
            f"{result.ratio:.2f}",
            f"{result.ratio_low:.2f} to {result.ratio_high:.2f}",
            f"{result.tau:.2f}",
            f"{result.equal_outputs:.0%}",
        )
        for result in results
    ]
    print_table(headers, rows)
