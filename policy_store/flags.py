"""What people have said about the policies as a whole: the champion is pinned, learning is frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, delete, insert, inspect, select

from policy_store import audit, schema
from policy_store.audit import Change

FlagName = Literal["pin", "freeze"]


@dataclass(frozen=True, slots=True)
class Flag:
    """Who set a flag, when and why."""

    at: str
    """RFC 3339, UTC."""
    actor: str
    reason: str
    version: int | None = None
    """The pinned champion; None for a freeze."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags as they stand; None where one is not set."""

    pin: Flag | None = None
    """The champion that neither a machine nor a promotion moves."""
    freeze: Flag | None = None
    """Nothing is learnt."""


def read(connection: Connection) -> Flags:
    """Every flag; none in a file of a release that had no flags."""
    if not inspect(connection).has_table(schema.flags.name):
        return Flags()
    found = {
        row.name: Flag(at=row.at, actor=row.actor, reason=row.reason, version=row.version)
        for row in connection.execute(select(schema.flags))
    }
    return Flags(pin=found.get("pin"), freeze=found.get("freeze"))


def put_up(connection: Connection, name: FlagName, change: Change, version: int | None = None) -> int | None:
    """Set a flag; the audit entry's id, or None where it is set already (for the same version)."""
    standing = getattr(read(connection), name)
    if standing is not None and standing.version == version:
        return None
    _delete(connection, name)
    connection.execute(
        insert(schema.flags).values(name=name, version=version, at=change.at, actor=change.actor, reason=change.reason)
    )
    return audit.append(connection, name, change, to_version=version)


def take_down(connection: Connection, name: FlagName, change: Change) -> int | None:
    """Unset a flag; the audit entry's id, or None where it is not set."""
    standing = getattr(read(connection), name)
    if standing is None:
        return None
    _delete(connection, name)
    event: audit.Event = "unpin" if name == "pin" else "unfreeze"
    return audit.append(connection, event, change, from_version=standing.version)


def _delete(connection: Connection, name: FlagName) -> None:
    connection.execute(delete(schema.flags).where(schema.flags.c.name == name))
