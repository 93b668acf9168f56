"""`respsd drafter collect`: prompts to the target's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models
from respsd.cli.drafter.figures import print_figures
from respsd.cli.drafter.target import training_target
from respsd.cli.output import OutputFormat, OutputOption
from respsd.clock import SystemClock
from respsd.errors import InvalidRequest


def collect(
    prompts: Annotated[list[Path], typer.Argument(help="Files (jsonl, .gz too) of `prompt`, `turns` or `messages`.")],
    output: Annotated[Path, typer.Option("--to", help="Answer file; appended to, so the same command resumes.")],
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Answer each prompt at this temperature; repeat. Default 0, 0.7, 1.")
    ] = None,
    answered: Annotated[
        list[Path] | None, typer.Option(help="Another answer file whose answers count as done.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop at this many answers in the file.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Leave longer prompts out.")] = 512,
    batch: Annotated[int, typer.Option(min=1, help="Answers generated at once.")] = 128,
    seed: int = 0,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    format_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have the target answer prompts; its answers are what a drafter trains on."""
    from respsd.drafter_training import collecting

    temperatures = tuple(temperature or (0.0, 0.7, 1.0))
    for value in temperatures:
        if not 0 <= value <= 2:
            raise InvalidRequest("temperature", value, "it must be from 0 to 2")
    settings = models.model_settings(demo=demo, target=target, drafter=None, dtype=dtype, device=device, config=config)
    target_folder, torch_device, torch_dtype = training_target(settings)
    done = collecting.collect(
        prompts,
        output,
        target_folder,
        collecting.CollectOptions(temperatures, max_new_tokens, max_prompt_tokens, limit, batch, seed),
        dtype=torch_dtype,
        device=torch_device,
        clock=SystemClock(),
        answered=answered or (),
    )
    figures = {"answers": done.answers, "tokens": done.tokens, "answers_before": done.answers_before}
    print_figures(figures, done.skipped, format_)
