"""The audit log: who changed what in the store, when and why. It only grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, insert, select

from policy_store import schema

Event = Literal["create", "adopt", "set-aside", "alias", "quarantine"]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change."""

    id: int
    at: str
    """RFC 3339, UTC."""
    actor: str
    event: Event
    alias: str | None
    from_version: int | None
    to_version: int | None
    reason: str
    figures: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class Change:
    """What the log keeps beside the change itself: its time, author, reason and figures."""

    at: str
    actor: str
    reason: str
    figures: Mapping[str, object] | None = None


def append(
    connection: Connection,
    event: Event,
    change: Change,
    *,
    alias: str | None = None,
    from_version: int | None = None,
    to_version: int | None = None,
) -> int:
    """Add an entry; its id."""
    entry = insert(schema.audit).values(
        at=change.at,
        actor=change.actor,
        event=event,
        alias=alias,
        from_version=from_version,
        to_version=to_version,
        reason=change.reason,
        figures=None if change.figures is None else json.dumps(dict(change.figures), allow_nan=False),
    )
    identity: int = connection.execute(entry.returning(schema.audit.c.id)).scalar_one()
    return identity


def entries(connection: Connection) -> list[AuditEntry]:
    """The whole log, oldest first."""
    return [
        AuditEntry(
            id=row.id,
            at=row.at,
            actor=row.actor,
            event=row.event,
            alias=row.alias,
            from_version=row.from_version,
            to_version=row.to_version,
            reason=row.reason,
            figures=None if row.figures is None else json.loads(row.figures),
        )
        for row in connection.execute(select(schema.audit).order_by(schema.audit.c.id))
    ]
