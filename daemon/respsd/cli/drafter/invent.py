"""`respsd drafter invent`: prompts that the target writes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models
from respsd.cli.drafter.figures import print_figures
from respsd.cli.drafter.target import training_target
from respsd.cli.output import OutputFormat, OutputOption
from respsd.clock import SystemClock


def invent(
    *,
    output: Annotated[Path, typer.Option("--to", help="Prompt file; appended to, so the same command resumes.")],
    count: Annotated[int, typer.Option(help="Stop at this many different prompts in the file.")],
    opening: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="How prompts begin; repeat to take several in turn.", show_default="freely"),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Above 0, at most 2.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Leave out prompts that have not ended after so many.")] = 256,
    keep_unfinished: Annotated[bool, typer.Option("--keep-unfinished", help="Keep those too.")] = False,
    batch: Annotated[int, typer.Option(help="Prompts invented at once.")] = 128,
    seed: int = 0,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    dtype: models.DtypeOption = None,
    device: models.DeviceOption = None,
    config: models.ConfigOption = None,
    format_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have the target write prompts of its own, for `respsd drafter collect` to answer."""
    from respsd.drafter_training import inventing

    options = inventing.InventOptions(
        count, tuple(opening or ("",)), temperature, max_tokens, keep_unfinished, batch, seed
    ).validated()
    settings = models.model_settings(demo=demo, target=target, drafter=None, dtype=dtype, device=device, config=config)
    target_folder, torch_device, torch_dtype = training_target(settings)
    done = inventing.invent(output, target_folder, options, dtype=torch_dtype, device=torch_device, clock=SystemClock())
    figures = {"prompts": done.prompts, "tokens": done.tokens, "prompts_before": done.prompts_before}
    print_figures(figures, done.skipped, format_, "turn")
