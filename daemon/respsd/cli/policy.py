"""`respsd policy`: the stored policy versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from policy_store import PolicyStore, StoreError, StoreNotFound
from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import print_json, print_message, print_table
from respsd.control.catalog import PolicyCatalog, PolicySummary
from respsd.errors import StorageError
from respsd.paths import POLICIES, TRANSITIONS, state_dir

app = typer.Typer(help="Look at the stored policies.", no_args_is_help=True)


class ListFormat(StrEnum):
    """How `policy list` prints."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


@app.callback()
def policy() -> None:
    """Look at the stored policies."""


@app.command("list")
def list_policies(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            envvar="RESPSD_STATE_DIR",
            help="State folder of the daemon; its files are read, the daemon need not run.",
            show_default="XDG state folder",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|unix:PATH", help="Ask a running daemon instead.", show_default="read the files"
        ),
    ] = None,
    output: Annotated[
        ListFormat, typer.Option("--output", "-o", help="table, wide, json, or name: version numbers only.")
    ] = ListFormat.TABLE,
) -> None:
    """List every policy version, oldest first, with its aliases and measured tokens per second."""
    if folder is not None and address is not None:
        raise typer.BadParameter("give --state-dir or --address, not both")
    versions = _from_files(folder or state_dir()) if address is None else _from_daemon(address)
    match output:
        case ListFormat.JSON:
            print_json([_document(version) for version in versions])
        case ListFormat.NAME:
            sys.stdout.write("".join(f"{version.version}\n" for version in versions))
        case _:
            _print_table(versions, wide=output is ListFormat.WIDE)


def _from_files(folder: Path) -> Sequence[PolicySummary]:
    try:
        with PolicyStore(folder / POLICIES, read_only=True) as store:
            return PolicyCatalog(store, folder / TRANSITIONS, print_message).list_policies()
    except StoreNotFound as fault:
        print_message(f"{fault}; `respsd serve` makes it, --state-dir says where to look")
        raise typer.Exit(ExitCode.NOT_FOUND) from fault
    except StoreError as fault:
        raise StorageError(str(fault)) from fault


def _from_daemon(address: str) -> Sequence[PolicySummary]:
    # grpc is slow to import, and the files need none of it
    from respsd.control.action import Action
    from respsd_client import Client, ServiceError

    try:
        with Client(address) as client:
            return [
                PolicySummary(
                    version=each.version,
                    aliases=each.aliases,
                    state=each.state,
                    created=each.created,
                    kind=each.kind,
                    parent=each.parent,
                    tokens_per_second=each.tokens_per_second,
                    action=None if each.action is None else Action.parse(each.action),
                )
                for each in client.list_policies()
            ]
    except ServiceError as fault:
        print_message(f"{address}: {fault.message}")
        raise typer.Exit(of_status(fault.code.name)) from fault


def _document(version: PolicySummary) -> dict[str, object]:
    return {
        "version": version.version,
        "aliases": list(version.aliases),
        "state": version.state,
        "created": _rfc3339(version.created),
        "kind": version.kind,
        "parent": version.parent,
        "tokens_per_second": version.tokens_per_second,
        "action": None if version.action is None else str(version.action),
    }


def _print_table(versions: Sequence[PolicySummary], *, wide: bool) -> None:
    now = datetime.now(UTC)
    rows = [
        (
            version.version,
            ",".join(version.aliases),
            version.state,
            version.kind,
            version.action,
            None if version.tokens_per_second is None else f"{version.tokens_per_second:.1f}",
            *((version.parent, _rfc3339(version.created)) if wide else (_age(now, version.created),)),
        )
        for version in versions
    ]
    headers = ("version", "aliases", "state", "kind", "action", "tokens/s")
    print_table((*headers, *(("parent", "created") if wide else ("age",))), rows)


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _age(now: datetime, then: datetime) -> str:
    seconds = max(int((now - then).total_seconds()), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
