"""The audit log: who changed what in the store, when and why. It only grows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row, insert, or_, select

from policy_store import schema

Event = Literal[
    "create",
    "import",
    "adopt",
    "set-aside",
    "restore",
    "remove",
    "alias",
    "promote",
    "rollback",
    "quarantine",
    "pin",
    "unpin",
    "freeze",
    "unfreeze",
]
"""`promote` and `rollback` move the champion, `alias` is every other move; a move to no version drops the alias.
`restore` says that the log before it is a backup's, or lost."""


def timestamp(nanoseconds: int) -> str:
    """A moment as the store writes it, RFC 3339 in UTC; texts of later moments sort later."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


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
class HistoryQuery:
    """Which entries of the log are wanted; what is None leaves nothing out."""

    version: int | None = None
    """Entries that the version was moved to, moved from or itself the subject of."""
    alias: str | None = None
    events: tuple[Event, ...] | None = None
    actor: str | None = None
    since: str | None = None
    """RFC 3339, UTC, as entries have it; entries of that moment are in."""
    before_id: int | None = None
    """Entries older than this one: where the next page starts."""
    limit: int | None = None
    """The newest so many."""


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


def entries(connection: Connection, query: HistoryQuery = HistoryQuery()) -> list[AuditEntry]:
    """The entries that a query asks for, oldest first."""
    columns = schema.audit.c
    wanted = select(schema.audit).order_by(columns.id.desc()).limit(query.limit)
    if query.version is not None:
        wanted = wanted.where(or_(columns.from_version == query.version, columns.to_version == query.version))
    if query.alias is not None:
        wanted = wanted.where(columns.alias == query.alias)
    if query.events is not None:
        wanted = wanted.where(columns.event.in_(query.events))
    if query.actor is not None:
        wanted = wanted.where(columns.actor == query.actor)
    if query.since is not None:
        wanted = wanted.where(columns.at >= query.since)
    if query.before_id is not None:
        wanted = wanted.where(columns.id < query.before_id)
    return [_entry(row) for row in reversed(connection.execute(wanted).all())]


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
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
