"""Brings the registry.db of an older release to the present schema, inside the transaction that opens it.

The statements are written out and never edited: they are what the release that made the step ran.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from policy_store.schema import SCHEMA_VERSION, schema_version

OLDEST_READABLE = 1
"""Schemas from here on can be read as they are; a writer migrates them first."""

STEPS: Mapping[int, tuple[str, ...]] = {
    1: (
        """CREATE TABLE flags (
            name TEXT NOT NULL,
            version INTEGER,
            at TEXT NOT NULL,
            actor TEXT NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (name),
            CHECK (name IN ('pin', 'freeze')),
            FOREIGN KEY(version) REFERENCES versions (version)
        )""",
    ),
}
"""By the schema that a step starts from."""


def migrate(connection: Connection) -> None:
    """Take every step from the file's schema to the present one; a newer file is left as it is."""
    for start in range(schema_version(connection), SCHEMA_VERSION):
        for statement in STEPS[start]:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"PRAGMA user_version = {start + 1}")
