"""`respsd db migrate`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from respsd.cli.db.files import StateDirOption, databases, settings_of
from respsd.cli.exit_codes import ExitCode
from respsd.cli.models import ConfigOption
from respsd.cli.output import OutputFormat, OutputOption, print_json, print_message, print_table
from respsd.errors import StorageError
from respsd.paths import POLICIES, REGISTRY, TRANSITIONS


def migrate(
    *,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="Also write the experience log anew, so that its free space goes back to the system from now on; "
            "takes room for a copy, and no daemon may run.",
        ),
    ] = False,
    state_dir: StateDirOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Bring the databases' schemas up to this release; a daemon does so by itself when it starts."""
    state = settings_of(state_dir, config).state_dir
    done: list[dict[str, object]] = []
    for path in databases(state):
        before, after = _migrate_registry(path) if path.name == REGISTRY else _migrate_log(path)
        done.append({"database": path.name, "path": str(path), "before": before, "after": after, "rewritten": False})
    if rewrite:
        for each in done:
            if each["database"] == TRANSITIONS:
                _rewrite(state)
                each["rewritten"] = True
    if output is OutputFormat.JSON:
        print_json(done)
    else:
        print_table(
            ("database", "before", "after"), [(each["database"], each["before"], each["after"]) for each in done]
        )


def _migrate_log(path: Path) -> tuple[str | None, str]:
    from respsd.experience.migrate import migrate_file

    migrated = migrate_file(path)
    return migrated.before, migrated.after


def _migrate_registry(path: Path) -> tuple[str | None, str | None]:
    from policy_store import PolicyStore, StoreError
    from respsd.experience.integrity import inspect

    before = inspect(path).schema
    try:
        PolicyStore(path.parent).close()  # opening it for writing migrates it
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
    return before, inspect(path).schema


def _rewrite(state: Path) -> None:
    from policy_store import StoreError, StoreInService
    from policy_store.presence import out_of_service
    from respsd.experience.migrate import rewrite_file

    with ExitStack() as stack:
        try:
            if (state / POLICIES).is_dir():
                stack.enter_context(out_of_service(state / POLICIES))
        except StoreInService as fault:
            print_message("a daemon runs on this state folder; stop it before the log is rewritten")
            raise typer.Exit(ExitCode.PRECONDITION) from fault
        except StoreError as fault:
            raise StorageError(str(fault)) from fault
        rewrite_file(state / TRANSITIONS)
