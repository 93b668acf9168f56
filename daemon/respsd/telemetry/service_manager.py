"""What systemd is told while the daemon serves: that it is alive, and a line on how it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from respsd.clock import Clock
from respsd.engine.api import EngineLoad
from respsd.telemetry.sdnotify import Notifier
from respsd.telemetry.totals import Totals

STATUS_SECONDS = 10.0


async def say_alive(notifier: Notifier, seconds_since_progress: Callable[[], float]) -> None:
    """Pet systemd's watchdog while the engine moves or is idle; silence has it restart a wedged daemon.

    Runs until it is cancelled, on the service's own event loop: a loop that is stuck is silent too.
    """
    watched = notifier.watchdog_seconds
    if watched is None:
        return
    while True:
        if seconds_since_progress() < watched:
            notifier.alive()
        await asyncio.sleep(watched / 2)


async def say_status(notifier: Notifier, describe: Callable[[], str | None]) -> None:
    """Keep the line of `systemctl status` fresh, until it is None: then others say what goes on."""
    while (line := describe()) is not None:
        notifier.status(line)
        await asyncio.sleep(STATUS_SECONDS)


class StatusLine:
    """Describes what the daemon does, with the tokens per second since the last description."""

    def __init__(self, serving: str, clock: Clock) -> None:
        """:param serving: what is served and where."""
        self._serving = serving
        self._clock = clock
        self._tokens: int | None = None
        self._at_ns = 0

    def describe(self, load: EngineLoad, totals: Totals, policies: Mapping[str, int | None]) -> str:
        """One line."""
        now, tokens = self._clock.monotonic_ns(), sum(arm.tokens for arm in totals.arms.values())
        elapsed = (now - self._at_ns) / 1e9
        speed = (tokens - self._tokens) / elapsed if self._tokens is not None and elapsed > 0 else 0.0
        self._tokens, self._at_ns = tokens, now
        champion = policies.get("champion")
        policy = "a built-in policy" if champion is None else f"policy {champion}"
        return f"{self._serving}: {load.running} running, {load.waiting} waiting, {speed:.0f} tokens/s by {policy}"
