"""What a `respsd drafter` command says at its end."""

from __future__ import annotations

from collections.abc import Mapping

from respsd.cli.output import OutputFormat, print_json, print_message, print_table
from respsd.drafter_training.prompts import Skipped


def print_figures(figures: Mapping[str, object], skipped: Skipped, output: OutputFormat, noun: str = "line") -> None:
    """What was left out, on standard error, and the figures. :param noun: what `skipped` counts"""
    print_message(skipped.describe(noun))
    if output is OutputFormat.JSON:
        print_json({**figures, "skipped": dict(skipped.reasons)})
    else:
        print_table(list(figures), [list(figures.values())])
