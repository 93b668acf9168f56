"""Listening: free ports, taken ports, socket files, pings, reflection, message sizes, policies."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.serving import BASELINE, FixedCatalog, eventually, make_server, served

from respsd.cli import exit_codes
from respsd.engine.stub import StubEngine
from respsd.errors import CannotListen, RespsdError, SettingsError, StorageError
from respsd.service.server import ServerOptions, ServiceServer, draw_seed
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc, policy_pb2


async def test_bound_port_is_returned_and_in_the_address():
    server = make_server(StubEngine())
    port = await server.start()
    assert server.address == f"127.0.0.1:{port}"
    assert port > 0
    await server.stop(0)


async def test_taken_port_is_refused():
    async with served(StubEngine()) as server:
        with pytest.raises(CannotListen, match=server.address):
            await make_server(StubEngine(), server.address).start()


async def test_socket_file_serves_and_goes_away(tmp_path: Path):
    listen = f"unix:{tmp_path / 'respsd.sock'}"
    async with served(StubEngine(), listen) as server:
        assert server.address == listen
        async with AsyncClient(listen) as client:
            assert (await client.generate("x", max_new_tokens=3)).completion_tokens == 3
        with pytest.raises(CannotListen, match="answers"):
            await make_server(StubEngine(), listen).start()
    assert not (tmp_path / "respsd.sock").exists()


async def test_socket_file_of_a_dead_daemon_is_replaced(tmp_path: Path):
    path = tmp_path / "respsd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    async with served(StubEngine(), f"unix:{path}") as server, AsyncClient(server.address) as client:
        assert (await client.model_info()).target == "stub"


async def test_socket_in_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(CannotListen, match=r"missing.*No such file"):
        await make_server(StubEngine(), f"unix:{tmp_path / 'missing' / 'respsd.sock'}").start()


async def test_socket_path_that_is_too_long_is_a_wrong_setting(tmp_path: Path):
    with pytest.raises(SettingsError, match="too long"):
        await make_server(StubEngine(), f"unix:{tmp_path / ('long' * 50)}").start()


@pytest.mark.parametrize(
    ("error", "code"), [(CannotListen("listen", "127.0.0.1:1", "it is taken"), 1), (SettingsError("listen: 'x'"), 2)]
)
def test_a_start_that_may_succeed_later_has_another_exit_code_than_wrong_settings(error: RespsdError, code: int):
    assert exit_codes.of_error(error) == code  # systemd tries again after 1 and not after 2


class DefaultPingRules(ServerOptions):
    """The options but for those about pings: gRPC then ends a connection that pings often without data."""

    def channel_arguments(self):
        dropped = ("grpc.http2.min_ping_interval_without_data_ms", "grpc.http2.max_ping_strikes")
        return [(key, value) for key, value in super().channel_arguments() if key not in dropped]


async def test_client_that_pings_often_keeps_its_long_call():
    pings = [("grpc.keepalive_time_ms", 50), ("grpc.http2.max_pings_without_data", 0)]
    engine = StubEngine()
    other = ServiceServer(engine, FixedCatalog(), options=DefaultPingRules(listen="127.0.0.1:0"))
    async with served(engine) as server:
        await other.start()
        engine.gate.close()
        async with (
            grpc.aio.insecure_channel(server.address, options=pings) as channel,
            grpc.aio.insecure_channel(other.address, options=pings) as doomed_channel,
        ):
            request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x"))
            call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request)
            with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
                await generation_pb2_grpc.GenerationServiceStub(doomed_channel).Generate(request)
            engine.gate.open()
            assert (await call).text
        await other.stop(0)


def test_keepalive_options_are_ones_that_grpc_knows():
    options = dict(ServerOptions(keepalive_seconds=7, max_message_bytes=99).channel_arguments())
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 1
    assert options["grpc.http2.max_ping_strikes"] == 0
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.keepalive_time_ms"] == 7000
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.max_receive_message_length"] == 99
    assert not any("min_recv_ping_interval" in key for key in options)


async def test_reflection_lists_the_services():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        names = {service.name for service in (await anext(aiter(call))).list_services_response.service}
    assert names == {
        "respsd.v1.GenerationService",
        "respsd.v1.PolicyService",
        "respsd.v1.StatusService",
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_message_over_the_limit_is_exhausted_and_the_next_is_fine():
    options = ServerOptions(listen="127.0.0.1:0", max_message_bytes=2000)
    engine = StubEngine()
    engine.start()
    server = ServiceServer(engine, FixedCatalog(), options=options)
    await server.start()
    async with AsyncClient(server.address) as client:
        with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED"):
            await client.generate("x" * 3000)
        assert (await client.generate("x" * 1000, max_new_tokens=1)).prompt_tokens == 1000
    await server.stop(0)
    engine.stop()


async def test_policies_are_listed_as_the_catalog_has_them():
    learned = replace(
        BASELINE,
        version=2,
        aliases=(),
        created=datetime(2026, 5, 6, 7, 8, 9, 250_000, tzinfo=UTC),
        kind="resps",
        parent=1,
        tokens_per_second=31.5,
        action=None,
    )
    engine = StubEngine()
    server = ServiceServer(engine, FixedCatalog([BASELINE, learned]), options=ServerOptions(listen="127.0.0.1:0"))
    await server.start()
    async with AsyncClient(server.address) as client:
        first, second = await client.list_policies()
    await server.stop(0)
    assert (first.version, first.aliases, first.state, first.kind) == (1, ("baseline", "champion"), "good", "static")
    assert (first.parent, first.tokens_per_second, first.action) == (None, None, "16,4,4")
    assert first.created == BASELINE.created
    assert (second.parent, second.tokens_per_second, second.action) == (1, 31.5, None)
    assert second.created == learned.created
    assert policy_pb2.Policy(version=1, tokens_per_second=0.0).HasField("tokens_per_second")


async def test_broken_store_is_internal_without_its_text():
    class Broken:
        def list_policies(self):
            raise StorageError("/secret/registry.db is malformed")

    server = ServiceServer(StubEngine(), Broken(), options=ServerOptions(listen="127.0.0.1:0"))
    await server.start()
    async with AsyncClient(server.address) as client:
        with pytest.raises(ServiceError, match="INTERNAL") as caught:
            await client.list_policies()
    await server.stop(0)
    assert "secret" not in str(caught.value)


def test_drawn_seeds_differ_and_stay_exact_in_json():
    seeds = [draw_seed() for _ in range(50)]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**53 for seed in seeds)


async def test_drain_lets_running_requests_finish_and_refuses_new_ones(monkeypatch):
    monkeypatch.setattr("respsd.service.server.FLUSH_SECONDS", 60.0)
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        running = asyncio.create_task(client.generate("x", max_new_tokens=9))
        await eventually(lambda: engine.load().waiting == 1)
        stopping = asyncio.create_task(server.stop(grace_seconds=30))
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match=r"UNAVAILABLE.*shutting down"):
            await client.generate("y")
        engine.gate.open()
        assert (await running).completion_tokens == 9
        await stopping
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            await client.generate("z")


async def test_end_of_the_grace_cuts_off_what_still_runs():
    engine = StubEngine(context_length=10**8)
    async with served(engine) as server, AsyncClient(server.address) as client:
        stream = client.stream("x", max_new_tokens=10**7)
        await anext(stream)
        await server.stop(grace_seconds=0.05)
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            async for _ in stream:
                pass
        await eventually(lambda: engine.load().running == 0)


async def test_cut_off_ends_a_long_grace():
    engine = StubEngine(context_length=10**8)
    async with served(engine) as server, AsyncClient(server.address) as client:
        stream = client.stream("x", max_new_tokens=10**7)
        await anext(stream)
        stopping = asyncio.create_task(server.stop(grace_seconds=3600))
        await asyncio.sleep(0)
        server.cut_off()
        await stopping
