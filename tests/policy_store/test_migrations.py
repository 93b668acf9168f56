"""Registries of older releases are read as they are, and brought up to date by the first writer."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from policy_store import Flags, ManifestDraft, PolicyStore
from policy_store.migrations import OLDEST_READABLE, STEPS
from policy_store.schema import SCHEMA_VERSION

SCHEMA_1 = """
CREATE TABLE versions (
    version INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('good', 'quarantined')),
    created TEXT NOT NULL, parent INTEGER, action TEXT, note TEXT NOT NULL, manifest_sha256 TEXT NOT NULL,
    PRIMARY KEY (version));
CREATE TABLE aliases (
    alias TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (alias),
    FOREIGN KEY(version) REFERENCES versions (version));
CREATE TABLE audit (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, actor TEXT NOT NULL, event TEXT NOT NULL,
    alias TEXT, from_version INTEGER, to_version INTEGER, reason TEXT NOT NULL, figures TEXT);
CREATE TABLE counter (last_version INTEGER NOT NULL);
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
PRAGMA user_version = 1;
"""
"""What release 0.1.0 made."""


@pytest.fixture
def old(tmp_path: Path, store: PolicyStore, static_draft: ManifestDraft) -> Path:
    """A store of schema 1 with one version, which is champion."""
    store.create(static_draft, actor="daemon", reason="the baseline")
    store.set_alias("champion", 1, actor="daemon", reason="first")
    store.close()
    path = tmp_path / "old"
    shutil.copytree(store.path / "versions", path / "versions")
    with sqlite3.connect(path / "registry.db") as connection:
        connection.executescript(SCHEMA_1)
        connection.execute("ATTACH ? AS made", (str(store.path / "registry.db"),))
        for table in ("versions", "aliases", "audit", "counter"):
            connection.execute(f"INSERT INTO main.{table} SELECT * FROM made.{table}")
    connection.close()
    return path


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Columns of every table, and the triggers."""
    with sqlite3.connect(path / "registry.db") as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
        found = {name: connection.execute(f"PRAGMA table_info('{name}')").fetchall() for name in names}
        found["foreign keys"] = [
            (name, *row[2:5]) for name in names for row in connection.execute(f"PRAGMA foreign_key_list('{name}')")
        ]
    connection.close()
    return found


def test_a_reader_takes_an_old_registry_as_it_is(old: Path) -> None:
    before = (old / "registry.db").read_bytes()
    with PolicyStore(old, read_only=True) as reader:
        assert reader.load("champion").manifest.action == (16, 4, 4)
        assert reader.flags() == Flags()
        assert [entry.event for entry in reader.audit()] == ["create", "alias"]
    assert (old / "registry.db").read_bytes() == before


def test_the_first_writer_brings_it_to_what_a_new_one_is(old: Path, tmp_path: Path) -> None:
    with PolicyStore(old) as store:
        assert store.aliases() == {"champion": 1}
        with store.changing(actor="operator:ann", reason="") as change:
            change.pin(1)
        assert [entry.event for entry in store.audit()] == ["create", "alias", "pin"]
    PolicyStore(tmp_path / "new").close()
    assert tables(old) == tables(tmp_path / "new")


def test_every_schema_but_the_newest_has_a_step() -> None:
    assert set(STEPS) == set(range(OLDEST_READABLE, SCHEMA_VERSION))


def test_a_step_that_fails_leaves_the_old_schema(old: Path) -> None:
    with sqlite3.connect(old / "registry.db") as connection:
        connection.execute("CREATE TABLE flags (mine TEXT)")  # in the step's way
    connection.close()
    with pytest.raises(Exception, match="flags"):
        PolicyStore(old)
    with sqlite3.connect(old / "registry.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
