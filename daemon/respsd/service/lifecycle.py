"""From signals to a drained server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import structlog

from respsd.service.server import ServiceServer

log = structlog.get_logger(__name__)


async def serve_until_signalled(
    server: ServiceServer, grace_seconds: float, announce: Callable[[], None] = lambda: None
) -> None:
    """Return when SIGTERM or SIGINT came and the server has drained; a second signal ends the grace at once.

    `announce` is called when signals are caught: who is told that the daemon is ready may stop it at once. The handlers
    run on the loop, so that no exception breaks into a call; they are removed in the end.
    """
    loop = asyncio.get_running_loop()
    asked, hurried = asyncio.Event(), asyncio.Event()

    def received(number: signal.Signals) -> None:
        log.info("signal_received", signal=number.name)
        (hurried if asked.is_set() else asked).set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, received, number)
    try:
        announce()
        await asked.wait()
        hurry = asyncio.create_task(_cut_off_when(hurried, server))
        await server.stop(grace_seconds)
        hurry.cancel()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _cut_off_when(hurried: asyncio.Event, server: ServiceServer) -> None:
    await hurried.wait()
    server.cut_off()
