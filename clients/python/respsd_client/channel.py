"""Addresses and the channel's options."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from respsd_client.credentials import Credentials, Tls

DEFAULT_ADDRESS = "127.0.0.1:7470"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_RETRIES = 4
_REPEATABLE = ("respsd.v1.GenerationService", "respsd.v1.StatusService")

ChannelOptions = list[tuple[str, str | int]]


def target_of(address: str) -> str:
    """gRPC's name of an address `HOST:PORT` or `unix:PATH`; raises ValueError on anything else."""
    if address.startswith("unix:"):
        if address == "unix:":
            raise ValueError("address 'unix:' names no path")
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"address {address!r} is neither HOST:PORT nor unix:PATH")
    return address


def options_for(address: str) -> ChannelOptions:
    """Options of a channel: a daemon that is gone is noticed within a minute, even while a long call waits."""
    options: ChannelOptions = [
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]
    if _is_loopback(address.rpartition(":")[0]):
        options.append(("grpc.enable_http_proxy", 0))  # http_proxy would take the call off this machine
    return options


def service_config(retries: int) -> dict[str, object]:
    """Has gRPC itself try calls again by status, later and later, and never once an answer has begun.

    Only calls that change nothing are among them. Raises ValueError past what gRPC does.
    """
    if not 0 <= retries <= MAX_RETRIES:
        raise ValueError(f"retries: {retries} is not allowed; it must be from 0 to {MAX_RETRIES}")
    if retries == 0:
        return {"methodConfig": []}
    policy = {
        "maxAttempts": retries + 1,
        "initialBackoff": "0.2s",
        "maxBackoff": "5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    }
    return {"methodConfig": [{"name": [{"service": name} for name in _REPEATABLE], "retryPolicy": policy}]}


def open_channel(address: str, *, tls: Tls | None = None, token: str | None = None, retries: int = 0) -> grpc.Channel:
    """A channel whose calls carry the token; raises ValueError on an address, credentials or retries that cannot be."""
    given = _credentials(address, tls, token)
    options = _all_options(address, given, retries)
    if given.tls is None:
        channel = grpc.insecure_channel(target_of(address), options=options)
    else:
        channel = grpc.secure_channel(target_of(address), given.tls.credentials(), options=options)
    return grpc.intercept_channel(channel, _WithMetadata(given.metadata)) if given.metadata else channel


def open_aio_channel(
    address: str, *, tls: Tls | None = None, token: str | None = None, retries: int = 0
) -> grpc.aio.Channel:
    """`open_channel` for asyncio."""
    given = _credentials(address, tls, token)
    options = _all_options(address, given, retries)
    interceptors = _aio_interceptors(given.metadata)
    if given.tls is None:
        return grpc.aio.insecure_channel(target_of(address), options=options, interceptors=interceptors)
    credentials = given.tls.credentials()
    return grpc.aio.secure_channel(target_of(address), credentials, options=options, interceptors=interceptors)


def _credentials(address: str, tls: Tls | None, token: str | None) -> Credentials:
    is_local = address.startswith("unix:") or _is_loopback(address.rpartition(":")[0])
    return Credentials.of(address, is_local=is_local, tls=tls, token=token)


def _all_options(address: str, given: Credentials, retries: int) -> ChannelOptions:
    options = [*options_for(address), ("grpc.service_config", json.dumps(service_config(retries)))]
    if given.tls is not None and given.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", given.tls.server_name))
    return options


class _Details(grpc.ClientCallDetails):
    """A call's details with more metadata; the library wants just these attributes."""

    def __init__(self, details: Any, metadata: Any) -> None:
        self.method, self.timeout, self.metadata = details.method, details.timeout, metadata
        self.credentials, self.wait_for_ready = details.credentials, details.wait_for_ready
        self.compression = getattr(details, "compression", None)


class _WithMetadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Adds metadata to every call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._extended(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._extended(details), request)

    def _extended(self, details: Any) -> _Details:
        return _Details(details, (*(details.metadata or ()), *self._metadata))


def _aio_interceptors(metadata: tuple[tuple[str, str], ...]) -> list[Any]:
    """The asyncio library takes one interceptor for each shape of call."""
    return [_AioUnary(metadata), _AioStream(metadata)] if metadata else []


def _extended_aio(details: Any, metadata: tuple[tuple[str, str], ...]) -> grpc.aio.ClientCallDetails:
    merged = grpc.aio.Metadata(*(details.metadata or ()), *metadata)
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, merged, details.credentials, details.wait_for_ready
    )


class _AioUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_extended_aio(details, self._metadata), request)


class _AioStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    async def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return await continuation(_extended_aio(details, self._metadata), request)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
