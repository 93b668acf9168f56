"""`respsd db export`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from respsd.cli.db.files import StateDirOption, log_of, settings_of
from respsd.cli.models import ConfigOption
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.errors import InvalidRequest, StorageError


def export(
    *,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to.", show_default="standard output")] = None,
    arm: Annotated[str | None, typer.Option(help="Only windows of this arm.", show_default="all")] = None,
    policy_version: Annotated[
        int | None, typer.Option(metavar="V", help="Only windows that this version chose.", show_default="all")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only requests that finished then or later (UTC).", show_default="all")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    state_dir: StateDirOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write the experience log as JSON lines: one window a line, with its request's columns, oldest first."""
    from respsd.experience.export import Selection, export_lines

    path = log_of(settings_of(state_dir, config).state_dir)
    since_ns = None if since is None else round(since.replace(tzinfo=since.tzinfo or UTC).timestamp()) * 10**9
    lines = export_lines(path, Selection(arm, policy_version, since_ns))
    if to is None:
        _to_stdout(lines)
        return
    if to.exists() and not force:
        raise InvalidRequest("--to", str(to), "the file is there; --force replaces it")
    windows = _to_file(lines, to)
    if output is OutputFormat.JSON:
        print_json({"path": str(to), "windows": windows, "bytes": to.stat().st_size})
    else:
        print_table(("file", "windows", "bytes"), [(to, windows, to.stat().st_size)])


def _to_stdout(lines: Iterable[str]) -> None:
    with suppress(BrokenPipeError):  # the reader has seen enough
        sys.stdout.writelines(lines)
        sys.stdout.flush()


def _to_file(lines: Iterable[str], to: Path) -> int:
    """Write all of it or nothing; the number of lines."""
    temporary = to.with_name(f".{to.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            count = sum(1 for line in lines if file.write(line))
        temporary.replace(to)
    except OSError as fault:
        raise StorageError(f"{to}: {fault.strerror}") from fault
    finally:
        temporary.unlink(missing_ok=True)
    return count
