"""`respsd db prune`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.db.files import StateDirOption, log_of, settings_of
from respsd.cli.models import ConfigOption
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.errors import InvalidRequest, StorageError
from respsd.paths import POLICIES

if TYPE_CHECKING:
    from respsd.experience.retention import Limits
    from respsd.settings import Settings


def prune(
    *,
    max_age_days: Annotated[
        float | None, typer.Option(min=0, help="Delete what finished longer ago.", show_default="as settings say")
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Windows that may stay.", show_default="as settings say")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Bytes in use that may stay; takes even what is unread.",
            show_default="as settings say",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go; by bytes, an estimate.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")] = False,
    state_dir: StateDirOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete the oldest requests until the experience log is within its limits, as a daemon does by itself.

    What the next update has yet to read stays, and so does the newest request.
    """
    from respsd.experience.retention import prune as run

    settings = settings_of(state_dir, config)
    path = log_of(settings.state_dir)
    given = {"max_age_days": max_age_days, "max_rows": max_rows, "max_bytes": max_bytes}
    retention = settings.retention.model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
    settings = settings.model_copy(update={"retention": retention})
    if not dry_run and not yes:
        _confirm(f"Delete the oldest requests of {path}?")
    pruned = run(path, _limits(settings), chunk_rows=retention.chunk_rows, dry_run=dry_run)
    document = {
        "dry_run": dry_run,
        "requests": pruned.requests,
        "windows": {reason: count for reason, count in pruned.windows.items() if count},
        "freed_bytes": pruned.freed_bytes,
        "size_bytes": pruned.size_bytes,
        "unreturned_bytes": pruned.unreturned_bytes,
    }
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        windows = ", ".join(f"{count} by {reason}" for reason, count in pruned.windows.items() if count) or "none"
        headers = ("requests", "windows", "freed bytes", "size bytes")
        print_table(headers, [(pruned.requests, windows, pruned.freed_bytes, pruned.size_bytes)])
    if pruned.unreturned_bytes:
        print_message(f"{path} keeps {pruned.unreturned_bytes} free bytes; `respsd db migrate --rewrite` returns them")


def _limits(settings: Settings) -> Limits:
    """The daemon's own limits, and what the policy store says of how far updates have read."""
    from policy_store import PolicyStore, StoreError, StoreNotFound
    from respsd.scheduling.retention_limits import limits_now, seen_by_learner

    try:
        with PolicyStore(settings.state_dir / POLICIES, read_only=True) as store:
            seen = seen_by_learner(store)
    except StoreNotFound:
        seen = None
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
    return limits_now(settings, seen, time.time_ns())


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidRequest("--yes", False, "without a terminal nobody can be asked; give --yes, or --dry-run")
    typer.confirm(question, abort=True)
