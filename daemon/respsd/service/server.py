"""The gRPC server: its services, its options, and how it starts and drains."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from respsd.control.policy_change import Operator
from respsd.engine.api import Engine
from respsd.errors import CannotListen, RespsdError
from respsd.service.auth import Access, Authorizer
from respsd.service.calls import CallObserver, Calls
from respsd.service.daemon_status import Reports, StatusServicer
from respsd.service.generation import GenerationServicer
from respsd.service.health import HealthReporter
from respsd.service.inference import InferenceServicer
from respsd.service.interceptor import CallInterceptor
from respsd.service.limits import Limits
from respsd.service.oip import open_inference_pb2, open_inference_pb2_grpc
from respsd.service.peers import PeerSocket
from respsd.service.phase import Lifecycle, Phase
from respsd.service.policy import PolicyCatalog, PolicyServicer
from respsd.service.tls import TlsFiles
from respsd.service.validation import MAX_DRAWN_SEED, RequestReader
from respsd_client.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    status_pb2,
    status_pb2_grpc,
)

log = structlog.get_logger(__name__)

SERVICES = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name,
    status_pb2.DESCRIPTOR.services_by_name["StatusService"].full_name,
    open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name,
)

FLUSH_SECONDS = 1.0
"""After the last request has ended: for its status to be sent, and for health watchers to see NOT_SERVING."""


def draw_seed() -> int:
    """A random seed for a request that has none."""
    return secrets.randbelow(MAX_DRAWN_SEED + 1)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server listens and looks after its connections."""

    listen: str = "127.0.0.1:7470"
    """HOST:PORT (port 0: any free one) or unix:PATH."""
    socket: Path | None = None
    """A UNIX socket besides, for this machine's own commands."""
    max_message_bytes: int = 4 << 20
    """The largest message received; what is sent is bounded by the requests."""
    keepalive_seconds: float = 30.0
    """An idle connection is pinged this often, so that a peer that vanished is noticed and its requests end."""
    keepalive_timeout_seconds: float = 10.0
    stall_seconds: float = 20.0
    """Health says NOT_SERVING when the engine has work and made no progress for this long."""
    health_interval_seconds: float = 2.0

    def channel_arguments(self) -> list[tuple[str, int]]:
        """The options as gRPC knows them."""
        return [
            # Two daemons must not share a port without noticing.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", round(self.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", round(self.keepalive_timeout_seconds * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            # Clients may ping as often as they like; by default a waiting call dies of "Too many pings". The key that
            # is often copied, with `min_recv_ping_interval`, is none that gRPC knows (vllm-project/vllm#55102).
            ("grpc.http2.min_ping_interval_without_data_ms", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ]


class ServiceServer:
    """Generation, policies, status, the Open Inference Protocol, health and reflection, on a TCP address or a UNIX
    socket or both. The engine is started and stopped by its owner."""

    def __init__(
        self,
        engine: Engine,
        catalog: PolicyCatalog,
        *,
        operator: Operator | None = None,
        options: ServerOptions | None = None,
        limits: Limits | None = None,
        draw_seed: Callable[[], int] = draw_seed,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        observers: Iterable[CallObserver] = (),
        reports: Reports | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        """:param access: who may call what; without it everybody may everything."""
        self._engine = engine
        self._catalog = catalog
        self._operator = operator
        self._options = options or ServerOptions()
        self._reader = RequestReader(engine.model, engine.tokenizer, limits or Limits(), draw_seed)
        self._access = access
        self._tls = tls
        self._reports = reports or Reports()
        self._lifecycle = lifecycle or Lifecycle()
        self._calls = Calls(observers)
        self._generation: GenerationServicer | None = None
        self._server: grpc.aio.Server | None = None
        self._socket: PeerSocket | None = None
        self._cut = asyncio.Event()
        self.health = HealthReporter(SERVICES, self._is_progressing, self._options.health_interval_seconds)
        self.address = self._options.listen
        """Where it listens; after `start` with the port that was bound."""

    async def start(self) -> int:
        """Listen and serve; return the bound port, 0 for a socket file.

        Raises CannotListen where the machine does not let it, SettingsError on a path that no socket can have.
        """
        self._generation = GenerationServicer(self._engine, self._reader)
        path = self._socket_path()
        self._socket = PeerSocket(path, self._access or Access()) if path is not None else None
        authorizer = Authorizer(self._access, self._socket) if self._access is not None else None
        interceptor = CallInterceptor(self._calls, authorizer, lambda: self._reader.limits)
        server = grpc.aio.server(interceptors=[interceptor], options=self._options.channel_arguments())
        self._add_services(server, self._generation)
        port = await self._listen(server)
        await server.start()
        await self.health.start()
        self._server = server
        if port:
            self.address = f"{self._options.listen.rpartition(':')[0]}:{port}"
        self._lifecycle.enter(Phase.READY)
        return port

    @property
    def addresses(self) -> Sequence[str]:
        """Everywhere it listens."""
        path = self._options.socket
        return (self.address,) if path is None else (self.address, f"unix:{path}")

    def use_limits(self, limits: Limits) -> None:
        """Hold requests that come from now on to these limits."""
        self._reader = replace(self._reader, limits=limits)
        if self._generation is not None:
            self._generation.use_reader(self._reader)

    async def stop(self, grace_seconds: float) -> None:
        """Drain: say NOT_SERVING, refuse new requests, let running ones finish, cancel the rest at the grace's end."""
        if self._server is None or self._generation is None:
            return
        server, self._server = self._server, None
        self._lifecycle.enter(Phase.DRAINING)
        await self.health.shut_down()
        self._generation.refuse_new()
        if await self._drained(self._generation, grace_seconds):
            await server.stop(FLUSH_SECONDS)
        else:
            log.warning("requests_cut_off")
            await server.stop(None)
            # The library does not wait for cancelled handlers, which have the engine to tell.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._generation.wait_idle(), FLUSH_SECONDS)
        self._lifecycle.enter(Phase.STOPPING)
        if self._socket is not None:
            await self._socket.stop()
        self._generation.close()

    def cut_off(self) -> None:
        """End the grace of a `stop` that is under way."""
        self._cut.set()

    async def _drained(self, generation: GenerationServicer, grace_seconds: float) -> bool:
        """Wait until no request runs; False where the grace ended first."""
        idle, cut = asyncio.create_task(generation.wait_idle()), asyncio.create_task(self._cut.wait())
        done, pending = await asyncio.wait({idle, cut}, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return idle in done

    def _is_progressing(self) -> bool:
        return self._engine.load().seconds_since_progress < self._options.stall_seconds

    def _is_ready(self) -> bool:
        return self._lifecycle.phase is Phase.READY and self._is_progressing()

    def _add_services(self, server: grpc.aio.Server, generation: GenerationServicer) -> None:
        status = StatusServicer(
            self._engine,
            self._calls,
            self._lifecycle,
            self._reports,
            addresses=lambda: self.addresses,
            is_progressing=self._is_progressing,
            concurrency=generation.concurrency,
            limits=lambda: self._reader.limits,
        )
        inference = InferenceServicer(
            generation, self._engine.model, is_live=self._is_progressing, is_ready=self._is_ready
        )
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
        policies = PolicyServicer(self._catalog, self._operator, lambda: self._reader.limits)
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(policies, server)
        status_pb2_grpc.add_StatusServiceServicer_to_server(status, server)
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(inference, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    def _socket_path(self) -> Path | None:
        listen = self._options.listen
        if listen.startswith("unix:"):
            return Path(listen.removeprefix("unix:").removeprefix("//"))
        return self._options.socket

    async def _listen(self, server: grpc.aio.Server) -> int:
        """Bind the address and the socket; return the port, 0 where there is only a socket."""
        port = 0
        if not self._options.listen.startswith("unix:"):
            port = _bind(server, self._options.listen, self._tls)
        if self._socket is not None:
            server.add_insecure_port(self._socket.inner)
            try:
                await self._socket.start()
            except RespsdError:
                await self._socket.stop()
                raise
        return port


def _bind(server: grpc.aio.Server, listen: str, tls: TlsFiles | None) -> int:
    """Listen at HOST:PORT; return the port."""
    try:
        if tls is not None:
            return server.add_secure_port(listen, tls.credentials())
        return server.add_insecure_port(listen)
    except RuntimeError as error:
        raise CannotListen("listen", listen, "is the address this machine's, and free?") from error
