"""The `--plot` flag of the bench commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from respsd.errors import InvalidRequest

SUFFIXES = (".png", ".html")

PlotOption = Annotated[Path | None, typer.Option(metavar="FILE.png|FILE.html", help="Draw the result into this file.")]


def check_plot(file: Path | None) -> None:
    """Refuse a file that could not be written, before hours are spent on what would go into it."""
    if file is None:
        return
    if file.suffix not in SUFFIXES:
        raise InvalidRequest("plot", str(file), f"the name must end in one of {', '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise InvalidRequest("plot", str(file), "its folder does not exist")
