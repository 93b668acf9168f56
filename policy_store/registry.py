"""The registry: which versions exist and in what state, and where the aliases point.

Functions take a connection inside a transaction, so that the store can join several changes into one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal, cast

from sqlalchemy import Connection, delete, insert, select, update

from policy_store import audit
from policy_store.audit import Change
from policy_store.errors import InvalidAlias, VersionInUse, VersionQuarantined, VersionUnknown
from policy_store.manifest import Kind, Manifest, Triple
from policy_store.schema import aliases, counter, versions
from policy_store.schema import audit as audit_log

State = Literal["good", "quarantined"]

_LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """A version as listed, from the registry alone."""

    version: int
    kind: Kind
    state: State
    created: str
    """RFC 3339, UTC."""
    parent: int | None
    action: Triple | None
    """Of a static version."""
    note: str
    aliases: tuple[str, ...]


def last_version(connection: Connection) -> int:
    """The highest number ever given out; 0 before the first."""
    found: int = connection.execute(select(counter.c.last_version)).scalar_one()
    return found


def burn_version(connection: Connection, version: int) -> None:
    """Never give out this number, or a lower one, again."""
    connection.execute(update(counter).where(counter.c.last_version < version).values(last_version=version))


def add_version(connection: Connection, manifest: Manifest, manifest_sha256: str) -> None:
    """Publish a version whose folder is in place."""
    connection.execute(
        insert(versions).values(
            version=manifest.version,
            kind=manifest.kind,
            state="good",
            created=manifest.created,
            parent=manifest.parent,
            action=None if manifest.action is None else json.dumps(manifest.action),
            note=manifest.note,
            manifest_sha256=manifest_sha256,
        )
    )
    burn_version(connection, manifest.version)


def known_versions(connection: Connection) -> set[int]:
    """Every published number."""
    return set(connection.execute(select(versions.c.version)).scalars())


def published_sha256(connection: Connection, version: int) -> str:
    """Hash of a version's manifest when it was published."""
    query = select(versions.c.manifest_sha256).where(versions.c.version == version)
    found: str = connection.execute(query).scalar_one()
    return found


def resolve(connection: Connection, name: str | int) -> int:
    """The version that a number (as int or decimal text) or an alias means; raises VersionUnknown."""
    found = _find(connection, name)
    if found is None:
        raise VersionUnknown(name)
    return found


def summaries(connection: Connection) -> list[VersionSummary]:
    """Every version, oldest first."""
    pointing: dict[int, list[str]] = {}
    for alias, version in all_aliases(connection).items():
        pointing.setdefault(version, []).append(alias)
    return [
        VersionSummary(
            version=row.version,
            kind=row.kind,
            state=row.state,
            created=row.created,
            parent=row.parent,
            action=None if row.action is None else cast("Triple", tuple(json.loads(row.action))),
            note=row.note,
            aliases=tuple(pointing.get(row.version, ())),
        )
        for row in connection.execute(select(versions).order_by(versions.c.version))
    ]


def all_aliases(connection: Connection) -> dict[str, int]:
    """Every alias and the version that it points to, in alphabetical order."""
    rows = connection.execute(select(aliases.c.alias, aliases.c.version).order_by(aliases.c.alias))
    return {row.alias: row.version for row in rows}


def move_alias(
    connection: Connection, alias: str, version: int, change: Change, event: audit.Event = "alias"
) -> int | None:
    """Point an alias to a good version; the audit entry's id, or None where it points there already."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", alias):
        raise InvalidAlias(alias)
    if state(connection, version) == "quarantined":
        raise VersionQuarantined(version)
    before = all_aliases(connection).get(alias)
    if before == version:
        return None
    if before is None:
        connection.execute(insert(aliases).values(alias=alias, version=version))
    else:
        connection.execute(update(aliases).where(aliases.c.alias == alias).values(version=version))
    return audit.append(connection, event, change, alias=alias, from_version=before, to_version=version)


def drop_alias(connection: Connection, alias: str, change: Change) -> int | None:
    """Let an alias point to nothing; the audit entry's id, or None where it does so already."""
    before = all_aliases(connection).get(alias)
    if before is None:
        return None
    connection.execute(delete(aliases).where(aliases.c.alias == alias))
    return audit.append(connection, "alias", change, alias=alias, from_version=before)


def remove_version(connection: Connection, version: int, change: Change) -> int:
    """Delete a version's row; the audit entry's id. Raises VersionUnknown or VersionInUse."""
    resolve(connection, version)
    pointing = [alias for alias, pointed in all_aliases(connection).items() if pointed == version]
    if pointing:
        raise VersionInUse(version, f"it is {', '.join(pointing)}")
    connection.execute(delete(versions).where(versions.c.version == version))
    return audit.append(connection, "remove", change, from_version=version)


def removed_versions(connection: Connection) -> set[int]:
    """Every number whose version was removed."""
    query = select(audit_log.c.from_version).where(audit_log.c.event == "remove")
    return set(connection.execute(query).scalars())


def quarantine(connection: Connection, version: int, change: Change) -> int | None:
    """Mark a version as not to be served; the audit entry's id, or None where it is so already."""
    if state(connection, version) == "quarantined":
        return None
    connection.execute(update(versions).where(versions.c.version == version).values(state="quarantined"))
    return audit.append(connection, "quarantine", change, to_version=version)


def state(connection: Connection, version: int) -> State:
    """Whether a version may serve; raises VersionUnknown."""
    found = resolve(connection, version)
    return cast("State", connection.execute(select(versions.c.state).where(versions.c.version == found)).scalar_one())


def _find(connection: Connection, name: str | int) -> int | None:
    if isinstance(name, str) and not (name.isascii() and name.isdecimal()):
        query = select(aliases.c.version).where(aliases.c.alias == name)
    else:
        if isinstance(name, str) and len(name) > len(str(_LARGEST_INTEGER)):
            return None
        number = int(name)
        if not 0 < number <= _LARGEST_INTEGER:
            return None
        query = select(versions.c.version).where(versions.c.version == number)
    return connection.execute(query).scalar_one_or_none()
