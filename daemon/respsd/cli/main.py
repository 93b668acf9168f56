"""The `respsd` command: puts its subcommands together and turns errors into one line and an exit code.

Nothing here or in the command modules imports torch before a command that needs it runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from respsd import __version__
from respsd.cli import (
    bench,
    calibrate,
    completion,
    config,
    db,
    doctor,
    drafter,
    generate,
    policy,
    rollout,
    serve,
    status,
    top,
    tune,
)
from respsd.cli.exit_codes import of_error
from respsd.cli.output import print_message
from respsd.errors import RespsdError

app = typer.Typer(
    name="respsd",
    help="An online self-tuning LLM inference daemon.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.command("calibrate")(calibrate.calibrate)
app.add_typer(policy.app, name="policy")
app.add_typer(drafter.app, name="drafter")
app.add_typer(rollout.app, name="rollout")
app.add_typer(config.app, name="config")
app.command("status")(status.status)
app.command("ps")(status.ps)
app.command("top")(top.top)
app.command("completion")(completion.completion)
app.add_typer(db.app, name="db")
app.add_typer(tune.app, name="tune")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"respsd {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


_SPINS = "3000"
"""About 50 microseconds, longer than the gaps between a model's operations."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # Read by OpenMP when torch is loaded. Its threads wait for each other by spinning, for milliseconds unless told
    # otherwise; beside another busy process each such wait takes the processor from the very thread that is waited
    # for (measured on two cores: 145 in place of 230 ms a step). On an idle machine it depends: no slower on a Zen 5,
    # 35 in place of 30 ms in a virtual machine on a Xeon, where waking a thread takes longer.
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    try:
        app()
    except RespsdError as error:
        print_message(f"respsd: {error}")
        sys.exit(of_error(error))
