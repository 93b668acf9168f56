"""How many requests are being answered at once, in all and for each client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from respsd.errors import Overloaded
from respsd.service.auth import ANYONE, current_caller
from respsd.service.limits import Limits


class Concurrency:
    """Counts requests from their arrival to their status; used on the event loop only."""

    def __init__(self) -> None:
        """Nothing is being answered."""
        self._by_client: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self.total = 0
        """Requests that are being answered."""

    @contextmanager
    def counted(self, client: str, limits: Limits) -> Iterator[None]:
        """One request of a client's; raises Overloaded where it is one too many."""
        if self.total >= limits.max_in_flight:
            raise Overloaded(
                "the daemon's room for requests",
                self.total,
                limits.max_in_flight,
                setting="admission.max_in_flight",
                reason="in_flight",
            )
        most, own = limits.max_client_requests, self._by_client.get(client, 0)
        if most is not None and own >= most:
            raise Overloaded(
                "this caller's share of requests",
                own,
                most,
                setting="admission.max_client_requests",
                reason="client_requests",
            )
        self.total += 1
        self._by_client[client] += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.total -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]
            if not self.total:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()


def client_of(peer: str) -> str:
    """Whose share the request counts into: the caller's that proved who they are, else their address's.

    :param peer: gRPC's name of the connection, `ipv4:HOST:PORT` or `ipv6:HOST:PORT`, or something of a socket's.
    """
    caller = current_caller()
    if caller.name != ANYONE.name:
        return f"caller:{caller.name}"
    kind = peer.partition(":")[0]
    return peer.rpartition(":")[0] if kind in ("ipv4", "ipv6") else kind
