"""Standard health (grpc.health.v1): serving while the engine makes progress, not merely while the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from grpc_health.v1 import health, health_pb2

log = structlog.get_logger(__name__)


class HealthReporter:
    """Asks whether there is progress every `interval_seconds` and sets the status of "" and each service."""

    def __init__(self, services: Sequence[str], is_progressing: Callable[[], bool], interval_seconds: float) -> None:
        self.servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the type stubs lack asyncio
        self._services = ("", *services)
        self._is_progressing = is_progressing
        self._interval_seconds = interval_seconds
        self._serving: bool | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Set the first status and keep it fresh from now on."""
        await self.check()
        self._watch = asyncio.create_task(self._keep_fresh())

    async def check(self) -> None:
        """Set the status now; a question that fails counts as no progress."""
        try:
            serving = self._is_progressing()
        except Exception:
            log.exception("progress_check_failed")
            serving = False
        if serving != self._serving:
            (log.info if serving else log.error)("health_changed", serving=serving)
        self._serving = serving
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in self._services:
            await self.servicer.set(service, status)

    async def shut_down(self) -> None:
        """Not serving, for good; idempotent."""
        if self._watch is not None:
            self._watch.cancel()
        await self.servicer.enter_graceful_shutdown()

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self.check()
