"""`respsd db check`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.db.files import StateDirOption, databases, settings_of
from respsd.cli.exit_codes import ExitCode
from respsd.cli.models import ConfigOption
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.paths import REGISTRY, TRANSITIONS

if TYPE_CHECKING:
    from respsd.experience.integrity import FileReport


def check(
    *,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also compare every index with its table; takes several times as long.")
    ] = False,
    state_dir: StateDirOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Look for damage in the databases and say what is in them; exits 1 where one is damaged or of another release."""
    from respsd.experience.integrity import inspect

    state = settings_of(state_dir, config).state_dir
    documents = [_report(inspect(path, thorough=thorough)) for path in databases(state)]
    aside = sorted(path for path in state.glob(f"{TRANSITIONS}.damaged-*") if not path.name.endswith(("-wal", "-shm")))
    if output is OutputFormat.JSON:
        print_json({"databases": documents, "set_aside": [str(path) for path in aside]})
    else:
        columns = ("database", "state", "schema", "size_bytes", "free_bytes", "wal_bytes")
        print_table(columns, [[each[column] for column in columns] for each in documents])
    for each in documents:
        for remark in _remarks(each):
            print_message(f"{each['path']}: {remark}")
    for path in aside:
        print_message(f"{path}: a damaged log that was set aside; delete it once it is of no use any more")
    if any(each["state"] != "sound" for each in documents):
        raise typer.Exit(ExitCode.FAILED)


def _report(report: FileReport) -> dict[str, object]:
    current = _current_schema(report.path)
    state = "sound" if report.schema == current else "other release"
    return {
        "database": report.path.name,
        "path": str(report.path),
        "state": state if report.is_sound else "damaged",
        "faults": list(report.faults),
        "schema": report.schema,
        "schema_of_this_release": current,
        "size_bytes": report.size_bytes,
        "wal_bytes": report.wal_bytes,
        "free_bytes": report.free_bytes,
        "gives_back_free_space": report.gives_back,
        "rows": dict(report.rows),
    }


def _current_schema(path: Path) -> str:
    if path.name == REGISTRY:
        from policy_store.schema import SCHEMA_VERSION

        return str(SCHEMA_VERSION)
    from respsd.experience.migrate import head_revision

    return head_revision()


def _remarks(report: dict[str, object]) -> Iterable[str]:
    faults = report["faults"]
    assert isinstance(faults, list)
    yield from map(str, faults)
    if report["state"] == "other release":
        expected, found = report["schema_of_this_release"], report["schema"]
        yield f"it has schema {found}, this release has {expected}; `respsd db migrate` brings an older one up to date"
    if not faults and not report["gives_back_free_space"] and report["database"] == TRANSITIONS:
        yield "it cannot give free space back to the system; `respsd db migrate --rewrite` lets it"
