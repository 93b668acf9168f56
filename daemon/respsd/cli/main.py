"""The `respsd` command: puts its subcommands together and turns errors into one line and an exit code.

Nothing here or in the command modules imports torch before a command that needs it runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from respsd import __version__
from respsd.cli import bench, doctor, drafter, generate, policy, serve
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
app.command("bench")(bench.bench)
app.add_typer(policy.app, name="policy")
app.add_typer(drafter.app, name="drafter")


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


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        app()
    except RespsdError as error:
        print_message(f"respsd: {error}")
        sys.exit(of_error(error))
