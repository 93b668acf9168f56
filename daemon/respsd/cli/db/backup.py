"""`respsd db backup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.db.files import StateDirOption, databases, settings_of
from respsd.cli.models import ConfigOption
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_table
from respsd.paths import BACKUPS

if TYPE_CHECKING:
    from respsd.experience.snapshot import Backup


def backup(
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to.", show_default="`backups` in the state folder")
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Backups of each that stay there.", show_default="as settings say"),
    ] = None,
    state_dir: StateDirOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy each database as it is at one moment, check the copy, and remove the oldest ones.

    To go back to one, stop the daemon and put the copy in the database's place, without its -wal and -shm files.
    """
    from respsd.experience.snapshot import back_up

    settings = settings_of(state_dir, config)
    folder = to or settings.state_dir / BACKUPS
    kept = keep or settings.schedule.backup_keep
    made = [(path.name, back_up(path, folder, keep=kept)) for path in databases(settings.state_dir)]
    if output is OutputFormat.JSON:
        print_json([_backup(name, each) for name, each in made])
    else:
        rows = [(name, each.path, each.size_bytes, "" if each.is_new else "unchanged") for name, each in made]
        print_table(("database", "backup", "bytes", "note"), rows)


def _backup(name: str, backup: Backup) -> dict[str, object]:
    return {
        "database": name,
        "path": str(backup.path),
        "bytes": backup.size_bytes,
        "new": backup.is_new,
        "removed": [str(path) for path in backup.removed],
    }
