"""The stored policy versions as listings show them: what the store knows, and what the experience log measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from policy_store import PolicyStore, StoreError
from respsd.control.action import Action
from respsd.errors import StorageError
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


class PolicyCatalog:
    """Lists a store's versions; works beside a running daemon and without one."""

    def __init__(
        self, store: PolicyStore, experience_log: Path, report: Callable[[str], None] = _log_unreadable
    ) -> None:
        """:param report: told why the speeds are unknown where the experience log cannot be read"""
        self._store = store
        self._experience_log = experience_log
        self._report = report

    def list_policies(self) -> Sequence[PolicySummary]:
        """Every version, oldest first. Raises StorageError where the store cannot be read.

        A log that cannot be read leaves the speeds unknown.
        """
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

    def _speeds(self) -> dict[int, float]:
        if not self._experience_log.exists():
            return {}
        try:
            return tokens_per_second_by_version(self._experience_log)
        except StorageError as fault:
            self._report(str(fault))
            return {}
