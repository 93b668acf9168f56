"""The asyncio client against the real service, where it differs from the other."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd_client import AsyncClient, ServiceError


async def test_streams_run_side_by_side():
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        results = await asyncio.gather(*(client.generate(str(n), max_new_tokens=30) for n in range(20)))
        alone = await client.generate("7", max_new_tokens=30)
    assert results[7].text == alone.text
    assert len({result.request_id for result in results}) == 20


async def test_leaving_the_stream_cancels_the_rest():
    engine = StubEngine(context_length=10**7)
    async with served(engine) as server, AsyncClient(server.address) as client:
        async with client.stream("x", max_new_tokens=10**6) as stream:
            await anext(stream)
        await eventually(lambda: engine.load().running == 0)
        with pytest.raises(ServiceError) as caught:
            await anext(stream)
        assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_cancelled_task_stays_a_cancelled_task():
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        stream = client.stream("x")
        reading = asyncio.create_task(anext(stream))
        await eventually(lambda: engine.load().waiting == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        engine.gate.open()


async def test_reading_past_the_end_is_the_end():
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        stream = client.stream("x", max_new_tokens=3)
        assert [chunk async for chunk in stream]
        assert [chunk async for chunk in stream] == []
        stream.cancel()
        assert stream.result.completion_tokens == 3
