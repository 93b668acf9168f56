"""The service under its settings: word to systemd in order, reloads that take all or nothing, the socket beside TCP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from support.certificates import Authority
from support.serving import DRAWN_SEED, FixedCatalog, eventually

from respsd.control.action import Action
from respsd.engine.stub import StubEngine
from respsd.errors import CannotListen, SettingsError
from respsd.service.server import ServiceServer
from respsd.serving import ServedParts, serve_engine
from respsd.settings import Settings
from respsd.settings_reload import changes
from respsd.telemetry.metrics import Metrics
from respsd.telemetry.sdnotify import Notifier
from respsd_client import AsyncClient, ServiceError, Tls

TOKEN = "a-token-of-many-letters"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(listen="127.0.0.1:0", state_dir=tmp_path, drain_seconds=5.0)


class Ears(Notifier):
    """Keeps what systemd would hear, by name."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.heard: list[str] = []

    def _send(self, message: str) -> None:
        self.heard.append(message.partition("=")[0] if not message.startswith("STATUS") else message)


@dataclass
class Running:
    """A service that runs, and the settings that its next reload will find."""

    address: str
    socket: str
    next_settings: list[Settings]
    ears: Ears
    metrics: Metrics
    lines: list[Any] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """Of explorers, as they were set."""

    async def reload(self) -> None:
        """SIGHUP, and wait until it is done."""
        done = self.ears.heard.count("READY") + 1
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: self.ears.heard.count("READY") == done)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Running]:
    engine, ears, metrics = StubEngine(), Ears(), Metrics(CollectorRegistry())
    engine.start()
    addresses: list[str] = []
    following = [settings]
    shares: list[float] = []
    parts = ServedParts(
        engine=engine,
        make_server=partial(ServiceServer, engine, FixedCatalog(), draw_seed=lambda: DRAWN_SEED),
        metrics=metrics,
        serving=lambda: {"champion": 1},
        largest_action=Action(128, 8, 32),
        learning_paused=lambda: "it is frozen: a test says so",
        explore=shares.append,
        rollout=lambda: ["candidate: version 3 against 1, in the shadow"],
    )

    def announce(server: ServiceServer) -> None:
        addresses.append(server.address)

    task = asyncio.create_task(serve_engine(settings, parts, ears, announce, lambda: following[-1]))
    try:
        while not addresses:
            await asyncio.sleep(0.005)
            if task.done():
                task.result()
        with structlog.testing.capture_logs() as lines:
            yield Running(addresses[0], f"unix:{settings.socket_path}", following, ears, metrics, lines, shares)
        os.kill(os.getpid(), signal.SIGTERM)
        await task
    finally:
        task.cancel()
        engine.stop()


def token_file(tmp_path: Path, line: str) -> Path:
    file = tmp_path / "tokens"
    file.write_text(line + "\n")
    file.chmod(0o600)
    return file


async def test_systemd_hears_ready_reloading_ready_stopping(settings: Settings):
    async with running(settings) as service:
        await eventually(lambda: any(word.startswith("STATUS") for word in service.ears.heard))
        await service.reload()
    words = [word for word in service.ears.heard if not word.startswith("STATUS")]
    assert words == ["READY", "RELOADING", "READY", "STOPPING", "EXTEND_TIMEOUT_USEC"]
    said = [word for word in service.ears.heard if word.startswith("STATUS")]
    assert said[0] == (f"STATUS=serving stub at {service.address}: 0 running, 0 waiting, 0 tokens/s by policy 1")
    assert said[-1] == "STATUS=draining, at most 5 s"


async def test_a_reload_takes_limits_tokens_and_drain_time(settings: Settings, tmp_path: Path):
    async with running(settings) as service:
        async with AsyncClient(service.address) as client:
            await client.generate("x", stop=["a", "b"], max_new_tokens=1)
            tokens = token_file(tmp_path, f"alice generate {TOKEN}")
            service.next_settings.append(
                settings.model_copy(
                    update={
                        "limits": settings.limits.model_copy(update={"max_stop_strings": 1}),
                        "auth": settings.auth.model_copy(update={"tokens": tokens}),
                        "drain_seconds": 3.0,
                        "exploration": settings.exploration.model_copy(update={"share": 0.25}),
                        "target": "another",
                    }
                )
            )
            await service.reload()
            with pytest.raises(ServiceError, match="UNAUTHENTICATED"):
                await client.generate("x", max_new_tokens=1)
        async with AsyncClient(service.address, token=TOKEN) as client:
            with pytest.raises(ServiceError, match="at most 1"):
                await client.generate("x", stop=["a", "b"], max_new_tokens=1)
            token_file(tmp_path, "bob generate another-token-0123")  # the same settings, other content
            await service.reload()
            with pytest.raises(ServiceError, match="UNAUTHENTICATED"):
                await client.generate("x", max_new_tokens=1)
        (line, _) = [line for line in service.lines if line["event"] == "reloaded"]
        assert set(line["changed"]) == {"limits.max_stop_strings", "auth.tokens", "drain_seconds", "exploration.share"}
        assert service.shares == [0.25, 0.25]
        assert line["needs_restart"] == ("target",)
    assert "STATUS=draining, at most 3 s" in service.ears.heard


async def test_the_status_tells_of_learning_and_rollout(settings: Settings):
    async with running(settings) as service, AsyncClient(service.address) as client:
        found = await client.status()
        assert found.learning_paused == "it is frozen: a test says so"
        assert found.rollout == ("candidate: version 3 against 1, in the shadow",)


async def test_a_reload_that_finds_a_fault_changes_nothing(settings: Settings, tmp_path: Path):
    async with running(settings) as service:
        service.next_settings.append(
            settings.model_copy(
                update={
                    "limits": settings.limits.model_copy(update={"max_stop_strings": 1}),
                    "auth": settings.auth.model_copy(update={"tokens": tmp_path / "none"}),
                }
            )
        )
        await service.reload()
        async with AsyncClient(service.address) as client:
            assert (await client.generate("x", stop=["a", "b"], max_new_tokens=1)).completion_tokens == 1
        (line,) = [line for line in service.lines if line["event"] == "reload_refused"]
        assert "auth.tokens" in line["fault"]
        assert line["log_level"] == "error"


async def test_a_reload_changes_the_log_level(settings: Settings):
    async with running(settings) as service:
        logging.getLogger().setLevel(logging.INFO)
        service.next_settings.append(
            settings.model_copy(update={"log": settings.log.model_copy(update={"level": "debug"})})
        )
        await service.reload()
        assert logging.getLogger().level == logging.DEBUG


async def test_certificates_come_from_the_settings_and_their_reload(settings: Settings, tmp_path: Path):
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    pair, moved = authority.issue("server"), other.issue("moved")
    tls = settings.tls.model_copy(update={"certificate": pair.certificate, "key": pair.key})
    async with running(settings.model_copy(update={"tls": tls})) as service:
        async with AsyncClient(service.address, tls=Tls(authority.file)) as client:
            assert (await client.model_info()).target == "stub"
        tls = tls.model_copy(update={"certificate": moved.certificate, "key": moved.key})
        service.next_settings.append(settings.model_copy(update={"tls": tls}))
        await service.reload()
        async with AsyncClient(service.address, tls=Tls(other.file)) as client:
            assert (await client.model_info()).target == "stub"


async def test_the_socket_is_the_admins_and_the_port_is_not(settings: Settings):
    async with running(settings) as service:
        async with AsyncClient(service.socket) as client:
            assert (await client.status()).addresses == (service.address, service.socket)
            with pytest.raises(ServiceError) as caught:
                await client.freeze_learning(reason="because")
            assert caught.value.code.name != "PERMISSION_DENIED"
        async with AsyncClient(service.address) as client:
            assert (await client.generate("x", max_new_tokens=2)).completion_tokens == 2
            with pytest.raises(ServiceError, match="PERMISSION_DENIED"):
                await client.freeze_learning(reason="because")


async def test_requests_and_phases_are_counted(settings: Settings):
    async with running(settings) as service, AsyncClient(service.address) as client:
        await client.generate("x", max_new_tokens=2)
        value = service.metrics.registry.get_sample_value
        assert value("respsd_requests_total", {"code": "OK", "finish_reason": "length"}) == 1
        assert value("respsd_phase", {"phase": "ready"}) == 1
        assert (await client.status()).totals.requests == {"OK": 1}


async def test_a_taken_socket_is_refused_and_leaves_the_port_free(settings: Settings):
    async with running(settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        second = settings.model_copy(update={"listen": f"127.0.0.1:{port}"})
        with pytest.raises(CannotListen, match=r"unix:.*respsd\.sock: another process answers there"):
            async with running(second):
                pass


async def test_tracing_without_its_packages_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    traced = settings.model_copy(update={"tracing": settings.tracing.model_copy(update={"endpoint": "127.0.0.1:1"})})
    with pytest.raises(SettingsError, match=r"respsd\[otel\]"):
        async with running(traced):
            pass


async def test_turning_tls_on_or_off_waits_for_a_restart(settings: Settings, tmp_path: Path):
    pair = Authority(tmp_path, "authority").issue("server")
    tls = settings.tls.model_copy(update={"certificate": pair.certificate, "key": pair.key})
    async with running(settings) as service:
        for _ in range(2):  # the second finds what the first one did not do
            service.next_settings.append(settings.model_copy(update={"tls": tls}))
            await service.reload()
            told = service.lines[-1]
            assert (told["event"], told["needs_restart"]) == ("reloaded", ("tls.certificate", "tls.key"))
            assert told["changed"] == ()


def test_changes_are_sorted_into_now_and_later(settings: Settings, tmp_path: Path):
    new = settings.model_copy(
        update={
            "listen": "127.0.0.1:1",
            "engine": settings.engine.model_copy(update={"max_running": 3}),
            "log": settings.log.model_copy(update={"level": "debug"}),
            "limits": settings.limits.model_copy(update={"max_message_bytes": 4096, "max_logit_bias": 1}),
            "tls": settings.tls.model_copy(update={"client_ca": tmp_path}),
        }
    )
    found = changes(settings, new)
    assert set(found.live) == {"log.level", "limits.max_logit_bias"}
    assert set(found.waiting) == {"listen", "engine.max_running", "limits.max_message_bytes", "tls.client_ca"}
    assert changes(settings, settings).live == changes(settings, settings).waiting == ()
