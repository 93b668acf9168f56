"""`respsd drafter quote`: prompts about the target's own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli import models
from respsd.cli.drafter.figures import print_figures
from respsd.cli.drafter.target import training_target
from respsd.cli.output import OutputFormat, OutputOption


def quote(
    *,
    answers: Annotated[list[Path], typer.Argument(help="Answer files of `respsd drafter collect`.")],
    output: Annotated[Path, typer.Option("--to", help="Prompt file; appended to.")],
    count: Annotated[int, typer.Option(help="Stop at this many prompts in the file.")],
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A prompt with {} for the text; repeat. Default: to summarise it."),
    ] = None,
    most_answers: Annotated[int, typer.Option(help="Quote from one to so many answers in a prompt.")] = 4,
    seed: int = 0,
    demo: models.DemoOption = False,
    target: models.TargetOption = None,
    config: models.ConfigOption = None,
    format_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write prompts that quote the target's prose answers, for `respsd drafter collect` to answer."""
    from respsd.drafter_training import quoting
    from respsd.engine.tokenizer import HfTokenizer

    templates = tuple(template or quoting.DEFAULT_TEMPLATES)
    options = quoting.QuoteOptions(count, templates, most_answers, seed).validated()
    settings = models.model_settings(demo=demo, target=target, drafter=None, dtype=None, device=None, config=config)
    folder, _device, _dtype = training_target(settings)
    done = quoting.quote(answers, output, HfTokenizer.load(folder), options)
    figures = {"prompts": done.prompts, "prompts_before": done.prompts_before}
    print_figures(figures, done.skipped, format_, "answer")
