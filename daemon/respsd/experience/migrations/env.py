"""Alembic's entry point: runs migrations on the connection that the caller opened, inside its transaction."""

from __future__ import annotations

from alembic import context

from respsd.experience.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
