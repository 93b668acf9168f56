"""Brings a database's schema up to this code's, with the migrations in the package."""

from __future__ import annotations

from pathlib import Path

from alembic.command import upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from respsd.errors import StorageError


def migrate(connection: Connection) -> None:
    """Upgrade inside the caller's transaction; raises StorageError where the schema is newer than this code."""
    config = Config()
    folder = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))  # the option's own interpolation
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise StorageError(f"the experience log has schema {current!r}, which only a newer respsd knows")
    if current != scripts.get_current_head():
        upgrade(config, "head")
