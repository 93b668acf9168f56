"""Health is forward progress: a wedged engine is not serving, a busy or an idle one is."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd.service.health import HealthReporter
from respsd_client import AsyncClient

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", "respsd.v1.GenerationService", "respsd.v1.PolicyService")


async def statuses(address: str) -> set[int]:
    async with grpc.aio.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        return {(await check(health_pb2.HealthCheckRequest(service=name))).status for name in NAMES}


async def test_wedged_engine_is_not_serving_until_it_moves_again():
    now = [0.0]
    engine = StubEngine(clock=lambda: now[0])
    async with served(engine) as server, AsyncClient(server.address) as client:
        assert await statuses(server.address) == {SERVING}
        now[0] += 10_000  # idle is not wedged
        await server.health.check()
        assert await statuses(server.address) == {SERVING}

        engine.gate.close()
        stream = client.stream("x", max_new_tokens=3)
        await eventually(lambda: engine.load().waiting == 1)
        now[0] += 19  # busy is not wedged
        await server.health.check()
        assert await statuses(server.address) == {SERVING}
        now[0] += 2
        await server.health.check()
        assert await statuses(server.address) == {NOT_SERVING}

        engine.gate.open()
        assert [chunk async for chunk in stream]
        await server.health.check()
        assert await statuses(server.address) == {SERVING}


async def test_unknown_service_is_not_found():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_see_the_change():
    moving = True
    reporter = HealthReporter(["s"], lambda: moving, interval_seconds=0.01)
    await reporter.start()
    assert reporter.servicer._server_status == {"": SERVING, "s": SERVING}
    moving = False
    await eventually(lambda: reporter.servicer._server_status["s"] == NOT_SERVING)
    moving = True
    await eventually(lambda: reporter.servicer._server_status["s"] == SERVING)
    await reporter.shut_down()
    await reporter.check()
    assert reporter.servicer._server_status == {"": NOT_SERVING, "s": NOT_SERVING}


async def test_failing_progress_check_is_no_progress():
    reporter = HealthReporter([], lambda: 1 // 0 == 0, interval_seconds=60)
    await reporter.check()
    assert reporter.servicer._server_status == {"": NOT_SERVING}
