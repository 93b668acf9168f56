"""`respsd top`: speed by arm, acceptance, actions and queue, live or once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.connection import TIMEOUT_SECONDS, AddressOption, connected
from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message
from respsd.cli.rates import Rates, rates
from respsd.cli.status import duration_or_never, load_document, policies_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from respsd_client import Client, DaemonStatus

MOST_ACTIONS = 8
"""Rows of the actions' table."""
_BAR = 30
"""Columns of a full bar."""


def top(
    *,
    address: AddressOption = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look at one interval, print it and end.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Watch tokens per second by arm, acceptance, the actions in use and the queue, until Ctrl-C."""
    if output is OutputFormat.JSON and not once:
        raise typer.BadParameter("-o json needs --once")
    try:
        with connected(address) as client:
            looks = _looks(client, interval)
            if once:
                _print_once(*next(looks), output)
            else:
                _watch(looks)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.OK if not once else ExitCode.INTERRUPTED) from None


def _looks(client: Client, interval: float) -> Iterator[tuple[DaemonStatus, Rates]]:
    """The status after each interval, and what happened in it."""
    before, at = client.status(timeout=TIMEOUT_SECONDS), time.monotonic()
    while True:
        time.sleep(interval)
        after, now = client.status(timeout=TIMEOUT_SECONDS), time.monotonic()
        yield after, rates(before, after, now - at)
        before, at = after, now


def _print_once(found: DaemonStatus, speed: Rates, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            {"phase": found.phase, "policies": found.policies, "load": load_document(found.load), **asdict(speed)}
        )
        return
    from rich.console import Console

    Console(highlight=False).print(picture(found, speed))


def _watch(looks: Iterator[tuple[DaemonStatus, Rates]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        print_message("respsd top: this is no terminal; use --once")
        raise typer.Exit(ExitCode.USAGE)
    with Live(Text("looking ..."), console=console, screen=True, auto_refresh=False) as live:
        for found, speed in looks:
            live.update(picture(found, speed), refresh=True)


def picture(found: DaemonStatus, speed: Rates) -> RenderableType:
    """One screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    load = found.load
    health = "" if found.healthy else f", NO PROGRESS for {duration_or_never(load.seconds_since_progress)}"
    kv_share = load.kv_tokens_reserved / load.kv_tokens_total if load.kv_tokens_total else 0.0
    acceptance = "nothing drafted" if speed.acceptance is None else f"{speed.acceptance:.0%} of drafted tokens kept"
    endings = ", ".join(f"{code} {rate:.1f}/s" for code, rate in speed.requests_per_second.items()) or "none"
    switches = f"{speed.switches_per_second:.1f} switches/s"
    arms = Table("arm", "tokens/s", "of one sequence", box=None, header_style="bold", pad_edge=False)
    for arm, rate in speed.arms.items():
        of_one = rate.sequence_tokens_per_second
        arms.add_row(arm, f"{rate.tokens_per_second:.1f}", "-" if of_one is None else f"{of_one:.1f}")
    actions = Table("action", "steps", "", box=None, header_style="bold", pad_edge=False)
    for action, share in list(speed.actions.items())[:MOST_ACTIONS]:
        actions.add_row(action, f"{share:.0%}", "█" * max(1, round(share * _BAR)))
    return Group(
        Text(f"{found.target} on {found.device}, {found.dtype}: {found.phase}{health}"),
        Text(f"policies: {policies_text(found)}"),
        Text(f"{load.running} running, {load.waiting} waiting, KV cache {kv_share:.0%}, requests ended: {endings}"),
        Text(f"{speed.tokens_per_second:.1f} tokens/s, {acceptance}, {switches} of the draft tree\n"),
        arms,
        Text(),
        actions,
    )
