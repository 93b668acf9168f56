"""Where the daemon stands between its start and its end, and who is told."""

from __future__ import annotations

import enum
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Phase(enum.Enum):
    """In this order, each at most once."""

    STARTING = "starting"
    """Loading; nothing is served."""
    READY = "ready"
    DRAINING = "draining"
    """What runs may finish; new requests are refused with UNAVAILABLE."""
    STOPPING = "stopping"


Listener = Callable[[Phase], None]


class Lifecycle:
    """Keeps the phase. Going back is a mistake of the caller's."""

    def __init__(self, *listeners: Listener) -> None:
        """:param listeners: called with each new phase, at once."""
        self._listeners = listeners
        self._phase = Phase.STARTING

    @property
    def phase(self) -> Phase:
        """Now."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Go on to a phase; being there already is nothing new. Raises ValueError on the way back."""
        order = list(Phase)
        if order.index(phase) < order.index(self._phase):
            raise ValueError(f"{phase.value} cannot follow {self._phase.value}")
        if phase is self._phase:
            return
        self._phase = phase
        log.info("phase", phase=phase.value)
        for tell in self._listeners:
            tell(phase)
