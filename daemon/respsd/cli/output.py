"""What commands print: data on standard output, as a table for people or as one JSON document for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 1 << 16
"""Columns of a table that goes into a pipe, where nothing may be cut off."""


class OutputFormat(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"


class DocumentFormat(StrEnum):
    """The values of `-o` where YAML is offered too."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class DataFormat(StrEnum):
    """The values of `-o` where data has more than one view for people."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="table for people, json for scripts.")]
"""The type of a command's `output` parameter."""


def print_json(value: object) -> None:
    """Write one JSON document and a line's end; the only thing that a command with `-o json` puts on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_yaml(value: object) -> None:
    """Write one YAML document."""
    import yaml  # most commands do without

    yaml.safe_dump(value, sys.stdout, sort_keys=False, allow_unicode=True)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write left-aligned columns without borders; None is an empty cell, a Text keeps its style.

    NO_COLOR is respected.
    """
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    console.print(table)


def _cell(value: object) -> Text:
    return value if isinstance(value, Text) else Text("" if value is None else str(value))


def print_message(text: str) -> None:
    """Write a line for people to standard error, which leaves stdout to the data."""
    sys.stderr.write(text + "\n")
