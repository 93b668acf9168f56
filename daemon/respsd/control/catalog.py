"""The stored policy versions as listings show them: what the store knows, and what the experience log measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import structlog

from policy_store import AuditEntry, Flags, HistoryQuery, PolicyStore, StoreError, VersionCorrupt, VersionUnknown
from respsd.control.action import Action
from respsd.errors import StorageError, UnknownPolicy
from respsd.experience.queries import tokens_per_second_by_version

log = structlog.get_logger(__name__)


def _log_unreadable(fault: str) -> None:
    log.warning("experience_log_unreadable", fault=fault)


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One stored version."""

    version: int
    aliases: tuple[str, ...]
    state: str
    """good or quarantined."""
    created: datetime
    """UTC."""
    kind: str
    """static or resps."""
    parent: int | None = None
    tokens_per_second: float | None = None
    """Committed tokens over seconds of decoding; None where no window of the version was logged."""
    action: Action | None = None
    """Of a static version."""


@dataclass(frozen=True, slots=True)
class PolicyDetail:
    """Everything about one stored version."""

    summary: PolicySummary
    manifest: Mapping[str, object] | None
    """The manifest's JSON object; None where it cannot be read."""
    fault: str | None = None
    """What is wrong with its files; None where they verify."""


class PolicyCatalog:
    """Reads a store; works beside a running daemon and without one. Every method may raise StorageError."""

    def __init__(
        self, store: PolicyStore | None, experience_log: Path, report: Callable[[str], None] = _log_unreadable
    ) -> None:
        """Read this store.

        :param store: None, which a daemon may have to do without, holds nothing
        :param report: told why the speeds are unknown where the experience log cannot be read
        """
        self._store = store
        self._experience_log = experience_log
        self._report = report

    def list_policies(self) -> Sequence[PolicySummary]:
        """Every version, oldest first. A log that cannot be read leaves the speeds unknown."""
        if self._store is None:
            return ()
        try:
            versions = self._store.list()
        except StoreError as fault:
            raise StorageError(str(fault)) from fault
        speeds = self._speeds()
        return [
            PolicySummary(
                version=each.version,
                aliases=each.aliases,
                state=each.state,
                created=datetime.fromisoformat(each.created),
                kind=each.kind,
                parent=each.parent,
                tokens_per_second=speeds.get(each.version),
                action=None if each.action is None else Action(*each.action),
            )
            for each in versions
        ]

    def states(self) -> Mapping[int, str]:
        """good or quarantined, by version; none where the store cannot be read, which its users hear of elsewhere."""
        try:
            return {} if self._store is None else {each.version: each.state for each in self._store.list()}
        except StoreError:
            return {}

    def get_policy(self, name: int | str) -> PolicyDetail:
        """One version, by number or alias, its files checked; raises UnknownPolicy."""
        if self._store is None:
            raise UnknownPolicy(str(name))
        try:
            version = self._store.resolve(name)
            manifest = json.loads(self._store.load(version).manifest.to_json())
            fault = None
        except VersionUnknown as unknown:
            raise UnknownPolicy(unknown.name) from unknown
        except VersionCorrupt as corrupt:
            manifest, fault = None, corrupt.fault
        except StoreError as broken:
            raise StorageError(str(broken)) from broken
        for summary in self.list_policies():
            if summary.version == version:
                return PolicyDetail(summary, manifest, fault)
        raise UnknownPolicy(str(name))  # removed this moment

    def history(self, query: HistoryQuery, name: int | str | None = None) -> Sequence[AuditEntry]:
        """What was changed, oldest first.

        :param name: of a version, by number or alias; its entries are told even where it was removed

        Raises UnknownPolicy where the name is an alias that points to nothing.
        """
        if self._store is None:
            return ()
        try:
            if name is not None:
                query = replace(query, version=self._version(self._store, name))
            return self._store.history(query)
        except StoreError as fault:
            raise StorageError(str(fault)) from fault

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        if self._store is None:
            return Flags()
        try:
            return self._store.flags()
        except StoreError as fault:
            raise StorageError(str(fault)) from fault

    @staticmethod
    def _version(store: PolicyStore, name: int | str) -> int:
        try:
            return store.resolve(name)
        except VersionUnknown as unknown:
            number = int(name) if str(name).isdecimal() and len(str(name)) < 19 else 0
            if store.history(HistoryQuery(version=number, limit=1)):
                return number
            raise UnknownPolicy(unknown.name) from unknown

    def _speeds(self) -> dict[int, float]:
        if not self._experience_log.exists():
            return {}
        try:
            return tokens_per_second_by_version(self._experience_log)
        except StorageError as fault:
            self._report(str(fault))
            return {}
