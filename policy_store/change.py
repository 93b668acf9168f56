"""Changes of the registry that take effect together or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from policy_store import audit, flags, registry
from policy_store.audit import AuditEntry, Change, Event, HistoryQuery
from policy_store.errors import VersionUnknown
from policy_store.flags import Flags
from policy_store.registry import VersionSummary


class StoreChange:
    """One transaction of `PolicyStore.changing`; everything that it reads is as its own changes left it.

    Methods that change return whether there was anything to change; the log's entries share author, reason and figures.
    """

    def __init__(self, connection: Connection, change: Change) -> None:
        self._connection = connection
        self._change = change
        self.entries: list[int] = []
        """Ids of the audit entries so far."""
        self.removed: list[int] = []
        """Versions that were removed; their folders go once the transaction is through."""

    def resolve(self, name: str | int) -> int:
        """The version that a number or an alias means; raises VersionUnknown."""
        return registry.resolve(self._connection, name)

    def summary(self, version: int) -> VersionSummary:
        """A version as listed; raises VersionUnknown."""
        found = next((each for each in self.list() if each.version == version), None)
        if found is None:
            raise VersionUnknown(version)
        return found

    def list(self) -> Sequence[VersionSummary]:
        """Every version, oldest first."""
        return registry.summaries(self._connection)

    def aliases(self) -> dict[str, int]:
        """Every alias and the version that it points to."""
        return registry.all_aliases(self._connection)

    def flags(self) -> Flags:
        """The flags as they stand."""
        return flags.read(self._connection)

    def history(self, query: HistoryQuery) -> Sequence[AuditEntry]:
        """The log's entries that a query asks for, oldest first."""
        return audit.entries(self._connection, query)

    def move_alias(self, alias: str, version: int, event: Event = "alias") -> bool:
        """Point an alias to a version; raises InvalidAlias, VersionUnknown or VersionQuarantined."""
        return self._did(registry.move_alias(self._connection, alias, version, self._change, event))

    def drop_alias(self, alias: str) -> bool:
        """Let an alias point to nothing."""
        return self._did(registry.drop_alias(self._connection, alias, self._change))

    def quarantine(self, version: int) -> bool:
        """Mark a version as never to be served; aliases that point to it stay. Raises VersionUnknown."""
        return self._did(registry.quarantine(self._connection, version, self._change))

    def pin(self, version: int) -> bool:
        """Say that the champion stays this version."""
        return self._did(flags.put_up(self._connection, "pin", self._change, version))

    def unpin(self) -> bool:
        """Take the pin back."""
        return self._did(flags.take_down(self._connection, "pin", self._change))

    def freeze(self) -> bool:
        """Say that nothing is learnt."""
        return self._did(flags.put_up(self._connection, "freeze", self._change))

    def unfreeze(self) -> bool:
        """Take the freeze back."""
        return self._did(flags.take_down(self._connection, "freeze", self._change))

    def restored(self) -> None:
        """Note that the registry is a backup's, or was begun anew."""
        self._did(audit.append(self._connection, "restore", self._change))

    def remove(self, version: int) -> None:
        """Remove a version; raises VersionUnknown, or VersionInUse where an alias points to it."""
        self._did(registry.remove_version(self._connection, version, self._change))
        self.removed.append(version)

    def _did(self, entry: int | None) -> bool:
        if entry is not None:
            self.entries.append(entry)
        return entry is not None
