"""Brings a database's schema up to this code's, with the migrations in the package."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from alembic.command import upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from policy_store.sqlite import writer_engine
from respsd.errors import StorageError
from respsd.experience.database import fault_named, patiently, require_log


@dataclass(frozen=True, slots=True)
class Migrated:
    """A file's schema before and after; None before its first."""

    before: str | None
    after: str


def migrate_file(path: Path) -> Migrated:
    """Bring an existing log up to date, beside a daemon or without one.

    Raises StorageError, or DatabaseDamaged: setting a damaged log aside is for its one writer.
    """
    require_log(path)
    engine = writer_engine(path, synchronous="NORMAL")
    try:
        return patiently(lambda: _migrated(engine))
    except (DBAPIError, sqlite3.Error) as fault:
        raise fault_named(path, fault) from fault
    finally:
        engine.dispose()


def _migrated(engine: Engine) -> Migrated:
    with engine.begin() as connection:
        before = MigrationContext.configure(connection).get_current_revision()
        migrate(connection)
        after = MigrationContext.configure(connection).get_current_revision()
    assert after is not None
    return Migrated(before, after)


def rewrite_file(path: Path) -> None:
    """Write an existing log anew, without free pages and so that it can give pages back from now on.

    Takes room for another copy, and nothing can be logged meanwhile. Raises StorageError, or DatabaseDamaged.
    """
    require_log(path)
    engine = writer_engine(path, synchronous="NORMAL")
    try:
        pooled = engine.raw_connection()
        try:
            connection = pooled.driver_connection
            assert isinstance(connection, sqlite3.Connection)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect with the next statement
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            pooled.close()
    except (DBAPIError, sqlite3.Error) as fault:
        raise fault_named(path, fault) from fault
    finally:
        engine.dispose()


def head_revision() -> str:
    """The schema that this code writes."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def migrate(connection: Connection) -> None:
    """Upgrade inside the caller's transaction; raises StorageError where the schema is newer than this code."""
    config = _config()
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known:
        raise StorageError(f"the experience log has schema {current!r}, which only a newer respsd knows")
    if current != scripts.get_current_head():
        upgrade(config, "head")


def _config() -> Config:
    config = Config()
    folder = Path(__file__).with_name("migrations")
    config.set_main_option("script_location", str(folder).replace("%", "%%"))  # the option's own interpolation
    config.set_main_option("path_separator", "os")
    return config
