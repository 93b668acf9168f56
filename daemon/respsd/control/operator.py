"""The one place in a running daemon that changes policies: moves aliases, then lets the router serve them.

Every change checks first what it is about to let serve: a version that does not load for this engine (files, hash,
golden input, observations, size of its trees) is refused before any alias moves. The aliases of one change move in one
transaction of the registry, and the router follows once that is through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from policy_store import (
    ArchiveRefused,
    AuditEntry,
    Flags,
    HistoryQuery,
    InvalidManifest,
    InvalidWeights,
    PolicyStore,
    StoredPolicy,
    StoreError,
    VersionCorrupt,
    VersionInUse,
    VersionQuarantined,
    VersionUnknown,
    read_archive,
)
from policy_store.audit import timestamp
from respsd.clock import Clock
from respsd.control.championship import Championship, frozen
from respsd.control.controller import Controller
from respsd.control.policy_change import OPERATOR, Intent, PolicyChange, TrainNow
from respsd.control.router import CANDIDATE, CHAMPION, LEARNER
from respsd.errors import ArchiveInvalid, ChangeRefused, PolicyRefused, RespsdError, StorageError, UnknownPolicy

log = structlog.get_logger(__name__)


class Loader(Protocol):
    """Makes controllers of versions, with every check that a version has to pass before it serves."""

    def controller(self, version: int, arm: str) -> Controller:
        """The controller of a stored version; raises UnknownPolicy or PolicyRefused."""
        ...

    def admit(self, policy: StoredPolicy, arm: str) -> Controller:
        """The controller of a version that need not be stored yet; raises PolicyRefused."""
        ...


class Router(Protocol):
    """What serves the aliases."""

    def swap(self, alias: str, controller: Controller) -> None:
        """Let `controller` serve `alias` from every request's next window on."""
        ...

    def forget(self, alias: str) -> None:
        """Let the alias name nothing; requests under way with it go on with the champion."""
        ...

    def forget_named(self) -> None:
        """Load versions that requests name by number anew."""
        ...

    def serving(self) -> Mapping[str, int | None]:
        """The version that each alias has now."""
        ...


class PolicyOperator:
    """Changes the policies of a running daemon. Every method may be called from any thread.

    Each raises UnknownPolicy, PolicyRefused (the version cannot serve), ChangeRefused (pinned, frozen, in use),
    Overtaken (the intent expected others to serve) or StorageError, and then nothing has changed.
    """

    def __init__(self, store: PolicyStore, loader: Loader, router: Router, clock: Clock) -> None:
        self._store = store
        self._loader = loader
        self._router = router
        self._clock = clock
        self._lock = threading.Lock()
        self.train: TrainNow = _no_scheduler
        """Set by whoever runs the scheduler."""

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version, by number or alias, the champion; the champion before it becomes last-good."""
        return self._apply(intent, lambda policies: policies.promote(version))

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        """Take the champion back and quarantine it.

        :param to: a former champion; None takes the newest good one before the present champion, the baseline at last

        Where the registry cannot be written the former champion serves all the same, and StorageError says so.
        """
        return self._apply(intent, lambda policies: policies.rollback(to), at_any_price=True)

    def set_learner(self, version: int, intent: Intent) -> PolicyChange:
        """Make a version the learner, which explorer requests sample."""
        return self._apply(intent, lambda policies: policies.nominate(LEARNER, version))

    def set_candidate(self, version: int, intent: Intent) -> PolicyChange:
        """Make a version the candidate, which a rollout compares with the champion."""
        return self._apply(intent, lambda policies: policies.nominate(CANDIDATE, version))

    def nominate(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version, by number or alias, the candidate, so that a rollout evaluates it.

        Refused where that cannot come about: it is the champion or quarantined, a champion is pinned, learning frozen.
        """
        return self._apply(intent, lambda policies: policies.propose(version))

    def withdraw(self, intent: Intent) -> PolicyChange:
        """Let there be no candidate; its version stays as good as it was, and may be nominated again."""
        return self._apply(intent, lambda policies: policies.change.drop_alias(CANDIDATE))

    def quarantine(self, version: int | str, intent: Intent) -> PolicyChange:
        """Say that a version never serves again; a candidate ceases to be one. Learning may go on from it.

        The champion is rolled back in place of that, and the baseline always works: both are refused.
        """
        return self._apply(intent, lambda policies: policies.quarantine(version))

    def pin(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version the champion where it is not, and let nobody move the champion until it is unpinned."""
        return self._apply(intent, lambda policies: policies.pin(version))

    def unpin(self, intent: Intent) -> PolicyChange:
        """Let the champion be moved again."""
        return self._apply(intent, lambda policies: policies.change.unpin())

    def freeze(self, intent: Intent) -> PolicyChange:
        """Stop learning: no new learner, no new candidate, no training."""
        return self._apply(intent, lambda policies: policies.change.freeze())

    def unfreeze(self, intent: Intent) -> PolicyChange:
        """Let learning go on."""
        return self._apply(intent, lambda policies: policies.change.unfreeze())

    def remove(self, version: int | str, intent: Intent) -> PolicyChange:
        """Delete a version that no alias points to."""
        return self._apply(intent, lambda policies: policies.change.remove(policies.change.resolve(version)))

    def export(self, version: int | str) -> bytes:
        """A version as an archive; raises UnknownPolicy, PolicyRefused or StorageError."""
        try:
            return self._store.export(version)
        except StoreError as fault:
            raise named(fault) from fault

    def import_archive(self, data: bytes, intent: Intent) -> PolicyChange:
        """Store an archive's version under a new number; raises ArchiveInvalid where it could not serve here."""
        try:
            archive = read_archive(data)
            self._loader.admit(StoredPolicy(archive.manifest, archive.weights), CHAMPION)
            if intent.dry_run:
                return PolicyChange((self._import_to_be(intent),), dry_run=True)
            version = self._store.import_archive(archive, actor=intent.actor, reason=intent.reason)
            return PolicyChange(tuple(self._store.history(HistoryQuery(version=version, events=("import",)))))
        except PolicyRefused as fault:
            raise ArchiveInvalid(f"archive: {fault.fault}") from fault
        except StoreError as fault:
            raise named(fault) from fault

    def train_now(self, intent: Intent) -> str:
        """Start an update of the learner; says what was started. Refused while learning is frozen."""
        freeze = self.flags().freeze
        if freeze is not None:
            raise ChangeRefused(frozen(freeze.reason))
        return self.train(actor=intent.actor, reason=intent.reason, dry_run=intent.dry_run)

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        try:
            return self._store.flags()
        except StoreError as fault:
            raise named(fault) from fault

    def rolled_back_by_hand(self, version: int) -> bool:
        """Whether a person took this version back from being champion; no machine should bring it there again."""
        entries = self._history(HistoryQuery(version=version, events=("rollback",)))
        return any(each.from_version == version and each.actor.startswith(OPERATOR) for each in entries)

    def automatic_rollbacks(self, within_seconds: float) -> int:
        """Versions that machines, not people, have quarantined in the time up to now."""
        since = timestamp(self._clock.time_ns() - round(within_seconds * 1e9))
        entries = self._history(HistoryQuery(events=("quarantine",), since=since))
        return sum(not each.actor.startswith(OPERATOR) for each in entries)

    def _import_to_be(self, intent: Intent) -> AuditEntry:
        """The entry of an import that was only checked; its version has no number yet."""
        now = timestamp(self._clock.time_ns())
        return AuditEntry(0, now, intent.actor, "import", None, None, None, intent.reason, None)

    def _history(self, query: HistoryQuery) -> tuple[AuditEntry, ...]:
        try:
            return tuple(self._store.history(query))
        except StoreError as fault:
            raise named(fault) from fault

    def _apply(
        self, intent: Intent, edit: Callable[[Championship], object], *, at_any_price: bool = False
    ) -> PolicyChange:
        """Run `edit` in one transaction, then let the router serve what it loaded.

        :param at_any_price: where the store fails after everything was loaded, serve it unrecorded
        """
        policies = None
        with self._lock:
            try:
                with self._store.changing(actor=intent.actor, reason=intent.reason, figures=intent.evidence) as change:
                    policies = Championship(change, self._loader.controller, self._router.serving())
                    policies.expect(intent.expected)
                    edit(policies)
                    # nobody else writes meanwhile, so the newest entries are this change's
                    entries = tuple(change.history(HistoryQuery(limit=len(change.entries))))
                    has_candidate = CANDIDATE in change.aliases()
                    if intent.dry_run:
                        raise _Undo
            except _Undo:
                return PolicyChange(tuple(replace(each, id=0) for each in entries), dry_run=True)
            except StoreError as fault:
                if at_any_price and policies is not None and CHAMPION in policies.swaps and not intent.dry_run:
                    self._swap(policies.swaps)
                    version = policies.swaps[CHAMPION].version
                    raise StorageError(f"version {version} serves, but could not be recorded: {fault}") from fault
                raise named(fault) from fault
            self._swap(policies.swaps)
            if not has_candidate:
                self._router.forget(CANDIDATE)
            self._router.forget_named()
        _log(entries)
        return PolicyChange(entries)

    def _swap(self, swaps: Mapping[str, Controller]) -> None:
        for alias, controller in swaps.items():
            self._router.swap(alias, controller)


class _Undo(Exception):
    """Ends the transaction of a dry run."""


def named(fault: StoreError) -> RespsdError:
    """The store's error as callers of the daemon know it."""
    match fault:
        case VersionUnknown():
            return UnknownPolicy(fault.name)
        case VersionQuarantined():
            return PolicyRefused(fault.version, "it is quarantined")
        case VersionCorrupt():
            return PolicyRefused(fault.version, fault.fault)
        case VersionInUse():
            return ChangeRefused(str(fault))
        case ArchiveRefused() | InvalidManifest() | InvalidWeights():
            return ArchiveInvalid(str(fault))
    return StorageError(str(fault))


def _no_scheduler(*, actor: str, reason: str, dry_run: bool) -> str:  # noqa: ARG001 - the Protocol's signature
    raise ChangeRefused("no training can be started: this daemon runs no scheduler")


def _log(entries: tuple[AuditEntry, ...]) -> None:
    for each in entries:
        log.info(
            "policy_change",
            change=each.event,
            alias=each.alias,
            from_version=each.from_version,
            to_version=each.to_version,
            actor=each.actor,
            reason=each.reason,
        )
