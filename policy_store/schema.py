"""The tables of registry.db."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
)

SCHEMA_VERSION = 2
"""Written to the file's `user_version`; 0 there means an empty file. `migrations` brings older files here."""

metadata = MetaData()

versions = Table(
    "versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, CheckConstraint("state IN ('good', 'quarantined')"), nullable=False),
    Column("created", Text, nullable=False),
    Column("parent", Integer),
    Column("action", Text),  # JSON; null unless static
    Column("note", Text, nullable=False),
    Column("manifest_sha256", Text, nullable=False),
)
aliases = Table(
    "aliases",
    metadata,
    Column("alias", Text, primary_key=True),
    Column("version", Integer, ForeignKey("versions.version"), nullable=False),
)
audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("alias", Text),
    Column("from_version", Integer),
    Column("to_version", Integer),
    Column("reason", Text, nullable=False),
    Column("figures", Text),  # JSON
    sqlite_autoincrement=True,
)
flags = Table(
    "flags",
    metadata,
    Column("name", Text, CheckConstraint("name IN ('pin', 'freeze')"), primary_key=True),
    Column("version", Integer, ForeignKey("versions.version")),  # the pinned champion; null for a freeze
    Column("at", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
)
counter = Table("counter", metadata, Column("last_version", Integer, nullable=False))
"""One row: the highest version number ever given out."""


def create_schema(connection: Connection) -> None:
    """Make the tables of a new registry."""
    metadata.create_all(connection)
    for verb in ("UPDATE", "DELETE"):  # the database itself refuses to change what the log holds
        connection.exec_driver_sql(
            f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit "
            "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )
    connection.execute(insert(counter).values(last_version=0))
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")


def schema_version(connection: Connection) -> int:
    """The file's schema version."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
