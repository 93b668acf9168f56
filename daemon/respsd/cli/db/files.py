"""Which files the commands of `respsd db` work on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from respsd.cli.exit_codes import ExitCode
from respsd.cli.output import print_message
from respsd.paths import POLICIES, REGISTRY, TRANSITIONS, is_file

if TYPE_CHECKING:
    from respsd.settings import Settings

StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        help="State folder of the daemon, which need not run.",
        show_default="as settings say",
    ),
]


def settings_of(state_dir: Path | None, config: Path | None) -> Settings:
    """The daemon's settings, with the flag over them; raises SettingsError."""
    from respsd.settings_loader import load_settings

    return load_settings({"state_dir": state_dir}, config=config)


def databases(state: Path) -> list[Path]:
    """The databases that are there; ends the command where there is none."""
    found = [path for path in (state / POLICIES / REGISTRY, state / TRANSITIONS) if is_file(path)]
    if not found:
        _not_found(f"{state}: there is no database that you may look at")
    return found


def log_of(state: Path) -> Path:
    """The experience log; ends the command where there is none."""
    path = state / TRANSITIONS
    if not is_file(path):
        _not_found(f"{path}: there is no experience log that you may look at")
    return path


def _not_found(text: str) -> NoReturn:
    print_message(f"{text}; `respsd serve` makes it, --state-dir says where to look")
    raise typer.Exit(ExitCode.NOT_FOUND)
