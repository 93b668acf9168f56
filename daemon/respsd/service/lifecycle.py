"""From signals to a reloaded or a drained server.

SIGTERM and SIGINT drain, a second one hurries; SIGHUP reads settings again, unless it came because the terminal that
the daemon was started from is gone, which is an end like SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable

import structlog

from respsd.service.server import ServiceServer

log = structlog.get_logger(__name__)

Reload = Callable[[], Awaitable[None]]


async def nothing_to_reload() -> None:
    """For a server without settings."""


async def serve_until_signalled(
    server: ServiceServer,
    grace_seconds: float | Callable[[], float],
    announce: Callable[[], None] = lambda: None,
    reload: Reload = nothing_to_reload,
) -> None:
    """Return when SIGTERM or SIGINT came and the server has drained; a second signal ends the grace at once.

    `announce` is called when signals are caught: who is told that the daemon is ready may stop it at once. The handlers
    run on the loop, so that no exception breaks into a call; they are removed in the end.

    :param grace_seconds: asked for when draining begins, since a reload may change it
    :param reload: must not raise; reloads run one at a time
    """
    loop = asyncio.get_running_loop()
    asked, hurried = asyncio.Event(), asyncio.Event()
    one_at_a_time = asyncio.Lock()
    reloads: set[asyncio.Task[None]] = set()
    terminal = _terminal()

    async def reload_alone() -> None:
        async with one_at_a_time:
            await reload()

    def stop(number: signal.Signals) -> None:
        log.info("signal_received", signal=number.name)
        (hurried if asked.is_set() else asked).set()

    def hang_up() -> None:
        if terminal is not None and _is_gone(terminal):
            stop(signal.SIGHUP)
        elif not asked.is_set():
            task = asyncio.create_task(reload_alone())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    handlers: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: stop(signal.SIGTERM),
        signal.SIGINT: lambda: stop(signal.SIGINT),
        signal.SIGHUP: hang_up,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that came while the daemon loaded comes now
    try:
        announce()
        await asked.wait()
        hurry = asyncio.create_task(_cut_off_when(hurried, server))
        await server.stop(grace_seconds() if callable(grace_seconds) else grace_seconds)
        hurry.cancel()
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
        for task in reloads:
            task.cancel()


async def _cut_off_when(hurried: asyncio.Event, server: ServiceServer) -> None:
    await hurried.wait()
    server.cut_off()


def _terminal() -> int | None:
    """The descriptor of the terminal that the daemon was started from, where it was."""
    try:
        return next((stream.fileno() for stream in (sys.stdin, sys.stderr) if os.isatty(stream.fileno())), None)
    except (AttributeError, OSError, ValueError):  # no stream, or none with a file behind it
        return None


def _is_gone(terminal: int) -> bool:
    try:
        termios.tcgetattr(terminal)
    except termios.error:
        return True
    return False
