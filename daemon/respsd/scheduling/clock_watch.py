"""Notices when somebody sets the machine's clock, by comparing it with the one that nobody can set."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from respsd.clock import Clock

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 10.0
_JUMP_NS = 2_000_000_000
"""Smaller steps are the corrections of a time service."""


class ClockWatch:
    """Tells `jumped` by how many seconds the clock was set: over 0 forwards, under 0 backwards."""

    def __init__(self, clock: Clock, jumped: Callable[[float], None]) -> None:
        self._clock = clock
        self._jumped = jumped
        self._stop = threading.Event()
        self._offset_ns = self._offset()
        self._thread = threading.Thread(target=self._run, name="clock-watch", daemon=True)

    def start(self) -> None:
        """Look every few seconds, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def look(self) -> None:
        """Look now."""
        offset_ns = self._offset()
        shift_ns, self._offset_ns = offset_ns - self._offset_ns, offset_ns
        if abs(shift_ns) >= _JUMP_NS:
            log.warning("clock_jumped", seconds=shift_ns / 1e9)
            self._jumped(shift_ns / 1e9)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self.look()

    def _offset(self) -> int:
        return self._clock.time_ns() - self._clock.monotonic_ns()
