"""`respsd policy history --plot`: the history as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from policy_store import AuditEntry
from respsd.cli.output import print_message
from respsd.paths import TRANSITIONS, state_dir

PlotOption = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE.png|.html", help="Also draw tokens/s by arm over time, with these changes marked."
    ),
]


def plot_history(file: Path, entries: Sequence[AuditEntry], folder: Path | None, address: str | None) -> None:
    """Draw the experience log's speeds and the entries; the log is read from this machine's state folder."""
    if address is not None:
        raise typer.BadParameter("--plot reads the experience log's file: give --state-dir in place of --address")
    from respsd.rollout.picture import write_picture  # matplotlib is slow to import
    from respsd.rollout.speed_history import speed_history

    log = (folder or state_dir()) / TRANSITIONS
    write_picture(speed_history(log) if log.exists() else [], entries, file)
    print_message(f"drew {file}")
