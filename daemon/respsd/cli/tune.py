"""`respsd tune`: try learning settings without a model."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table

if TYPE_CHECKING:
    from respsd.tuning.simulation import Progress

app = typer.Typer(help="Try learning settings on a simulated machine.", no_args_is_help=True)


class TableName(StrEnum):
    """Which action table the simulated policies have."""

    PAPER = "paper"
    CONFIGURED = "configured"


@app.callback()
def tune() -> None:
    """Try learning settings on a simulated machine."""


@app.command()
def simulate(
    *,
    windows: Annotated[int, typer.Option(min=1, help="Windows to serve.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the first policy, the traffic and the noise.")] = 0,
    table: Annotated[
        TableName, typer.Option(help="The Re-SpS paper's 177 actions, or those of the settings.")
    ] = TableName.PAPER,
    request_sigma: Annotated[float, typer.Option(min=0, help="Noise of a request's speed, log-normal.")] = 0.35,
    step_sigma: Annotated[float, typer.Option(min=0, help="Noise of a step's time, log-normal.")] = 0.1,
    equal: Annotated[bool, typer.Option("--equal", help="Run 48,5,12 whatever is chosen: nothing to learn.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file, whose [learning] section is used.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell what the greedy policy earns as it learns.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let the learning loop run on a simulated machine, in which the kind of text decides which actions are best.

    Starts from a random policy. Prints the true tokens/s of what was learnt and of what could have been.
    """
    import torch

    from respsd.control.action import Action, paper_table
    from respsd.settings_loader import load_settings
    from respsd.telemetry.logging import configure_logging
    from respsd.tuning.environment import Environment
    from respsd.tuning.simulation import simulate as run

    configure_logging("warning", "auto")
    torch.set_num_threads(1)
    settings = load_settings(config=config)
    environment = Environment(
        paper_table() if table is TableName.PAPER else settings.control.table(),
        request_sigma=request_sigma,
        step_sigma=step_sigma,
        only=Action(48, 5, 12) if equal else None,
    )

    result = run(environment, settings.learning, windows, seed, _tell if verbose else None)
    if output is OutputFormat.JSON:
        print_json({**asdict(result), "seed": seed, "actions": len(environment.table)})
        return
    of_optimum = {name: getattr(result, name) for name in ("greedy", "sampled", "best_constant", "baseline", "first")}
    rows = [("optimum", f"{result.optimum:.1f}", "1.000")]
    rows += [(name, f"{speed:.1f}", f"{speed / result.optimum:.3f}") for name, speed in of_optimum.items()]
    print_table(["policy", "tokens/s", "of optimum"], rows)
    print_message(f"{result.updates} updates, {result.refused} refused; greedy actions: {result.greedy_actions}")


def _tell(progress: Progress) -> None:
    print_message(f"{progress.windows} windows, version {progress.version}: greedy {progress.greedy:.1f} tokens/s")
