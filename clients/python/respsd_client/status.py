"""Calls of the status service, for both clients."""

from __future__ import annotations

from respsd_client.errors import service_errors
from respsd_client.status_result import (
    DaemonStatus,
    Load,
    RunningRequest,
    read_load,
    read_requests,
    read_status,
)
from respsd_client.v1 import status_pb2, status_pb2_grpc


class StatusCalls:
    """The part of `Client` that asks how the daemon does."""

    _status: status_pb2_grpc.StatusServiceStub

    def load(self, *, timeout: float | None = None) -> Load:
        """The work at this moment."""
        with service_errors():
            return read_load(self._status.GetLoad(status_pb2.GetLoadRequest(), timeout=timeout))

    def status(self, *, timeout: float | None = None) -> DaemonStatus:
        """What is served and what was counted since the start."""
        with service_errors():
            return read_status(self._status.GetStatus(status_pb2.GetStatusRequest(), timeout=timeout))

    def list_requests(self, *, timeout: float | None = None) -> list[RunningRequest]:
        """Requests in flight, the oldest first."""
        with service_errors():
            return read_requests(self._status.ListRequests(status_pb2.ListRequestsRequest(), timeout=timeout))


class AsyncStatusCalls:
    """The part of `AsyncClient` that asks how the daemon does."""

    _status: status_pb2_grpc.StatusServiceAsyncStub

    async def load(self, *, timeout: float | None = None) -> Load:
        """The work at this moment."""
        with service_errors():
            return read_load(await self._status.GetLoad(status_pb2.GetLoadRequest(), timeout=timeout))

    async def status(self, *, timeout: float | None = None) -> DaemonStatus:
        """What is served and what was counted since the start."""
        with service_errors():
            return read_status(await self._status.GetStatus(status_pb2.GetStatusRequest(), timeout=timeout))

    async def list_requests(self, *, timeout: float | None = None) -> list[RunningRequest]:
        """Requests in flight, the oldest first."""
        with service_errors():
            return read_requests(await self._status.ListRequests(status_pb2.ListRequestsRequest(), timeout=timeout))
