"""`respsd db`: upkeep of the databases by hand. Every command works beside a running daemon and without one."""

from __future__ import annotations

import typer

from respsd.cli.db.backup import backup
from respsd.cli.db.check import check
from respsd.cli.db.export import export
from respsd.cli.db.migrate import migrate
from respsd.cli.db.prune import prune

app = typer.Typer(help="Look after the databases: the experience log and the policy registry.", no_args_is_help=True)
for command in (migrate, check, backup, export, prune):
    app.command()(command)
