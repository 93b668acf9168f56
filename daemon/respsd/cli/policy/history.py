"""`respsd policy history`: what was changed, by whom and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from policy_store import AuditEntry, HistoryQuery
from respsd.cli.output import DataFormat, print_json, print_table, print_yaml
from respsd.cli.policy.options import AskOption, FormatOption, StateDirOption
from respsd.cli.policy.plotting import PlotOption, plot_history
from respsd.cli.policy.reading import source
from respsd.cli.policy.wording import age_of, change, entry_document


def history(
    version: Annotated[
        str | None, typer.Argument(metavar="V", help="Entries about this version only.", show_default="all")
    ] = None,
    *,
    alias: Annotated[str | None, typer.Option(metavar="NAME", help="Moves of this alias only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many.")] = 100,
    folder: StateDirOption = None,
    address: AskOption = None,
    plot: PlotOption = None,
    output: FormatOption = DataFormat.TABLE,
) -> None:
    """List what was changed, oldest first: who moved what from where to where, and why."""
    with source(folder, address) as policies:
        entries = policies.history(HistoryQuery(alias=alias, limit=limit), version)
    if plot is not None:
        plot_history(plot, entries, folder, address)
    match output:
        case DataFormat.JSON:
            print_json([entry_document(entry) for entry in entries])
        case DataFormat.YAML:
            print_yaml([entry_document(entry) for entry in entries])
        case DataFormat.NAME:
            sys.stdout.write("".join(f"{entry.id}\n" for entry in entries))
        case _:
            print_entries(entries, wide=output is DataFormat.WIDE)


def print_entries(entries: Sequence[AuditEntry], *, wide: bool = False) -> None:
    """A line an entry; wide has the exact time and the figures too."""
    rows = [
        (
            entry.id,
            entry.at if wide else age_of(entry),
            entry.actor,
            change(entry),
            entry.reason,
            *((None if entry.figures is None else json.dumps(entry.figures),) if wide else ()),
        )
        for entry in entries
    ]
    print_table(("id", "at" if wide else "age", "actor", "change", "reason", *(("figures",) if wide else ())), rows)
