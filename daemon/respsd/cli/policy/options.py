"""Options that several policy commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.cli.output import DataFormat, DocumentFormat

VersionArgument = Annotated[str, typer.Argument(metavar="V", help="Version number or alias.", show_default=False)]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        envvar="RESPSD_STATE_DIR",
        help="State folder of the daemon, whose files are read; the daemon need not run.",
        show_default="XDG state folder",
    ),
]
AskOption = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT|unix:PATH", help="Ask a running daemon instead.", show_default="read the files"
    ),
]
FormatOption = Annotated[
    DataFormat, typer.Option("--output", "-o", help="table, wide, json, yaml, or name: identifiers only.")
]

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT|unix:PATH",
        envvar="RESPSD_ADDRESS",
        help="The daemon that makes the change.",
        show_default="its UNIX socket in the state folder or /run/respsd, else 127.0.0.1:7470",
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and say what would change; change nothing.")
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Change the files, which is refused while a daemon runs on them.")
]
ChangeFormatOption = Annotated[
    DocumentFormat, typer.Option("--output", "-o", help="table for people, json or yaml for scripts.")
]
