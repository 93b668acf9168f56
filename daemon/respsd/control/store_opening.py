"""Opens the policy store of a daemon that starts; a damaged registry is put right first."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import structlog

from policy_store import PolicyStore, StoreError
from policy_store.presence import in_service
from policy_store.restoring import REGISTRY, Restored, restore_registry
from respsd.control.bootstrap import ACTOR
from respsd.control.router import LEARNER
from respsd.experience.snapshot import backups_of
from respsd.paths import BACKUPS, POLICIES

log = structlog.get_logger(__name__)


def open_store(state_dir: Path, stack: ExitStack) -> tuple[PolicyStore | None, tuple[str, ...]]:
    """The policy store and what a person should know of its opening; `stack` closes it.

    None where it cannot be opened, since the built-in baseline serves without one.
    """
    path = state_dir / POLICIES
    try:
        restored = restore_registry(path, backups_of(path / REGISTRY, state_dir / BACKUPS))
        store = PolicyStore(path)
        stack.enter_context(in_service(store.path))
        stack.callback(store.close)
        if restored is None:
            return store, ()
        _note(store, restored)
    except StoreError as fault:
        log.error("policy_store_failed", fault=str(fault))
        return None, (f"the policy store does not work, the built-in baseline serves: {fault}",)
    return store, (str(restored),)


def _note(store: PolicyStore, restored: Restored) -> None:
    log.error(
        "registry_restored",
        fault=restored.fault,
        backup=None if restored.backup is None else str(restored.backup),
        set_aside=None if restored.set_aside is None else str(restored.set_aside),
    )
    learned = [each.version for each in store.list() if each.kind == "resps"]
    with store.changing(actor=ACTOR, reason=str(restored)) as change:
        change.restored()
        if restored.backup is None and learned:  # learning goes on where it was; what serves is the bootstrap's
            change.move_alias(LEARNER, learned[-1])
