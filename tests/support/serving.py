"""The real service over a stub engine on a real socket: in a test's own event loop, or on a thread beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
import pytest

from policy_store import AuditEntry, Flags, HistoryQuery
from respsd.control.action import Action
from respsd.control.catalog import PolicyDetail, PolicySummary
from respsd.engine.api import Deliver
from respsd.engine.request import GenerationRequest
from respsd.engine.stub import StubEngine
from respsd.errors import UnknownPolicy
from respsd.service.limits import Limits
from respsd.service.server import ServerOptions, ServiceServer
from respsd_client import ServiceError

BASELINE = PolicySummary(
    version=1,
    aliases=("baseline", "champion"),
    state="good",
    created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    kind="static",
    action=Action(16, 4, 4),
)
DRAWN_SEED = 424242


class FixedCatalog:
    """Lists what it was given."""

    def __init__(self, policies: Sequence[PolicySummary] = (BASELINE,)) -> None:
        self.policies = policies

    def list_policies(self) -> Sequence[PolicySummary]:
        """The given summaries."""
        return self.policies

    def get_policy(self, name: int | str) -> PolicyDetail:
        """The summary with that number or alias, and no manifest."""
        for each in self.policies:
            if str(name) in (str(each.version), *each.aliases):
                return PolicyDetail(each, None, "it is not stored")
        raise UnknownPolicy(str(name))

    def history(self, query: HistoryQuery, name: int | str | None = None) -> Sequence[AuditEntry]:
        """Nothing was ever changed."""
        return ()

    def flags(self) -> Flags:
        """Neither pinned nor frozen."""
        return Flags()


def make_server(
    engine: StubEngine,
    listen: str = "127.0.0.1:0",
    limits: Limits | None = None,
    *,
    socket: Path | None = None,
    **parts: Any,
) -> ServiceServer:
    """A server on a free port whose drawn seed is always DRAWN_SEED; `parts` are ServiceServer's own."""
    options = ServerOptions(listen=listen, socket=socket)
    catalog = parts.pop("catalog", None) or FixedCatalog()
    return ServiceServer(engine, catalog, options=options, limits=limits, draw_seed=lambda: DRAWN_SEED, **parts)


@asynccontextmanager
async def served(
    engine: StubEngine, listen: str = "127.0.0.1:0", limits: Limits | None = None, **parts: Any
) -> AsyncIterator[ServiceServer]:
    """A started engine and server; both end with the block."""
    server = make_server(engine, listen, limits, **parts)
    engine.start()
    try:
        await server.start()
        yield server
    finally:
        await server.stop(0)
        engine.stop()


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fail where it does not within a time that no machine needs."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def submissions(engine: StubEngine) -> list[str]:
    """Ids of the requests that the engine takes from now on; the list grows with them."""
    taken, submit = list[str](), engine.submit

    def noting(request: GenerationRequest, deliver: Deliver) -> None:
        submit(request, deliver)
        taken.append(request.request_id)

    engine.submit = noting  # type: ignore[method-assign]
    return taken


async def run_out_of_time(call: Callable[[float], Awaitable[object]], reached: Callable[[], bool]) -> None:
    """Make a call until its deadline, in seconds, passed after it had come so far that `reached` holds.

    On a busy machine a short deadline passes before the call has reached the server at all, so each try has more time.
    `reached` is asked after the deadline, so what made it hold must go on holding.
    """
    seconds = 0.1
    while not reached():
        with pytest.raises((ServiceError, grpc.aio.AioRpcError), match="DEADLINE_EXCEEDED"):
            await call(seconds)
        seconds *= 2


class ServerThread:
    """A server on an event loop in a thread, for clients that block; `address` is where it listens."""

    def __init__(
        self, engine: StubEngine, listen: str = "127.0.0.1:0", limits: Limits | None = None, **parts: Any
    ) -> None:
        self._serving = served(engine, listen, limits, **parts)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.address = ""

    async def _run(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._serving as server:
                self.address = server.address
                self._ready.set()
                await self._ended.wait()
        except BaseException as error:
            self._failure = error
            self._ready.set()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
