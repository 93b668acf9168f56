from __future__ import annotations

import sqlite3
from dataclasses import fields
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from respsd.control.controller import Decision
from respsd.errors import StorageError
from respsd.experience.database import open_log
from respsd.experience.models import Base, RequestRow, TransitionRow
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin


def columns(model: type[Base]) -> set[str]:
    return set(model.__table__.columns.keys())


def test_migrations_make_what_the_models_say(path: Path) -> None:
    engine = open_log(path).engine
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_request_row_has_every_field_of_the_record_and_its_origin() -> None:
    expected = {field.name for cls in (RequestRecord, Origin) for field in fields(cls)}
    assert columns(RequestRow) == expected | {"id"}


def test_a_transition_row_has_every_field_of_the_record_and_its_decision() -> None:
    expected = {field.name for cls in (TransitionRecord, Decision) for field in fields(cls)}
    expected -= {"decision", "applied", "action"}
    triples = {f"{which}_{knob}" for which in ("requested", "applied") for knob in ("total_tokens", "depth", "top_k")}
    assert columns(TransitionRow) == expected | triples | {"id", "request_row"}


def test_the_same_models_make_tables_on_postgresql() -> None:
    dialect = postgresql.dialect()
    tables = {table.name: str(CreateTable(table).compile(dialect=dialect)) for table in Base.metadata.sorted_tables}
    assert "id BIGSERIAL NOT NULL" in tables["requests"]
    assert "observation BYTEA NOT NULL" in tables["transitions"]
    assert "log_prob DOUBLE PRECISION NOT NULL" in tables["transitions"]
    assert "opened_at_ns BIGINT NOT NULL" in tables["transitions"]
    for table in Base.metadata.sorted_tables:
        for index in table.indexes:
            assert "CREATE INDEX" in str(CreateIndex(index).compile(dialect=dialect))


def test_opening_again_keeps_the_rows_and_migrates_nothing(path: Path) -> None:
    open_log(path).engine.dispose()
    with sqlite3.connect(path) as connection:
        before = connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    opened = open_log(path)
    assert opened.moved_aside is None
    opened.engine.dispose()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == before
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0003",)]


def test_a_schema_of_a_newer_respsd_is_refused_and_left_alone(path: Path) -> None:
    open_log(path).engine.dispose()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="9999"):
        open_log(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_nothing_behind(path: Path) -> None:
    """Tables of another program are in the way of the second one."""
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE transitions (x)")
    connection.close()
    with pytest.raises(StorageError, match="already exists"):
        open_log(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("transitions",)]
