"""Whether policies may be trained now, and why not; asked anew each time, so that learning goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from policy_store import Flags, StoreError
from respsd.experience.recorder import RecorderStatus


class FlagSource(Protocol):
    """Knows whether learning is frozen; the policy store."""

    def flags(self) -> Flags:
        """The flags as they stand; raises StoreError."""
        ...


class LearningGate:
    """Collects what keeps policies from being trained. Any thread may ask."""

    def __init__(
        self, store: FlagSource | None, recorder: Callable[[], RecorderStatus] | None, *, enabled: bool = True
    ) -> None:
        """Take those who know.

        :param recorder: how the experience log fares; None where nothing is logged
        :param enabled: whether updates run by themselves
        """
        self._store = store
        self._recorder = recorder
        self._enabled = enabled
        self._lock = threading.Lock()
        self._damaged_registry: str | None = None

    def registry_checked(self, fault: str | None) -> None:
        """A check found the registry damaged, or None: sound."""
        with self._lock:
            self._damaged_registry = fault

    def paused(self) -> str | None:
        """Why nothing is trained by itself; None where something may be."""
        return self.blocked() or (None if self._enabled else "learning.enabled is false")

    def blocked(self) -> str | None:
        """Why nothing can be trained even where somebody asks for it."""
        if self._recorder is None:
            return "the experience log is off (recorder.enabled is false)"
        if self._store is None:
            return "the policy store could not be opened"
        return self._registry_fault() or self._freeze() or self._log_fault(self._recorder())

    def _registry_fault(self) -> str | None:
        with self._lock:
            fault = self._damaged_registry
        return None if fault is None else f"the policy store's registry is damaged: {fault}"

    def _freeze(self) -> str | None:
        assert self._store is not None
        try:
            freeze = self._store.flags().freeze
        except StoreError as fault:
            return str(fault)
        if freeze is None:
            return None
        return f"frozen by {freeze.actor} at {freeze.at}" + (f": {freeze.reason}" if freeze.reason else "")

    def _log_fault(self, status: RecorderStatus) -> str | None:
        if status.state == "degraded":
            return f"the experience log cannot be written: {status.reason}"
        return None if status.is_open else "the experience log is not open yet"
