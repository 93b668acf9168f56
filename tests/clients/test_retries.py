"""Calls are tried again by status, as often as asked for, by both Python clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd.service.calls import Call
from respsd_client import AsyncClient, Client, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc, policy_pb2, policy_pb2_grpc

UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


@dataclass
class Moody(generation_pb2_grpc.GenerationServiceServicer, policy_pb2_grpc.PolicyServiceServicer):
    """Fails as told, call by call, then answers."""

    failures: list[grpc.StatusCode] = field(default_factory=list)
    calls: int = 0
    chunks_before_failing: int = 0

    async def Tokenize(self, request, context):  # type: ignore[no-untyped-def]
        await self._fail(context)
        return generation_pb2.TokenizeResponse(token_ids=[1])

    async def GenerateStream(self, request, context):  # type: ignore[no-untyped-def]
        for _ in range(self.chunks_before_failing):
            yield generation_pb2.GenerateStreamResponse(chunk=generation_pb2.Chunk(text="x"))
        await self._fail(context)
        yield generation_pb2.GenerateStreamResponse(chunk=generation_pb2.Chunk(text="y"))

    async def PromotePolicy(self, request, context):  # type: ignore[no-untyped-def]
        await self._fail(context)
        return policy_pb2.PromotePolicyResponse()

    async def _fail(self, context: object) -> None:
        self.calls += 1
        if self.failures:
            await context.abort(self.failures.pop(0), "as told")  # type: ignore[attr-defined]


@asynccontextmanager
async def moody(*failures: grpc.StatusCode, chunks: int = 0) -> AsyncIterator[tuple[Moody, str]]:
    server, servicer = grpc.aio.server(), Moody(list(failures), chunks_before_failing=chunks)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
    policy_pb2_grpc.add_PolicyServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_unavailable_and_full_are_tried_again_until_it_works() -> None:
    async with moody(UNAVAILABLE, EXHAUSTED) as (servicer, address), AsyncClient(address, retries=2) as client:
        assert (await client.tokenize("x")).token_ids == (1,)
        assert servicer.calls == 3


async def test_the_last_failure_is_the_callers() -> None:
    async with moody(*[UNAVAILABLE] * 3) as (servicer, address), AsyncClient(address, retries=1) as client:
        with pytest.raises(ServiceError, match="UNAVAILABLE: as told"):
            await client.tokenize("x")
        assert servicer.calls == 2


@pytest.mark.parametrize(
    ("retries", "code"), [(0, UNAVAILABLE), (3, grpc.StatusCode.INVALID_ARGUMENT), (3, grpc.StatusCode.INTERNAL)]
)
async def test_without_retries_and_with_another_failure_it_is_final(retries: int, code: grpc.StatusCode) -> None:
    async with moody(code) as (servicer, address), AsyncClient(address, retries=retries) as client:
        with pytest.raises(ServiceError, match=code.name):
            await client.tokenize("x")
        assert servicer.calls == 1


async def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    async with moody(UNAVAILABLE) as (servicer, address), AsyncClient(address, retries=2) as client:
        assert [chunk.text async for chunk in client.stream("x")] == ["y"]
        assert servicer.calls == 2
    async with moody(UNAVAILABLE, chunks=1) as (servicer, address), AsyncClient(address, retries=2) as client:
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            [chunk async for chunk in client.stream("x")]
        assert servicer.calls == 1


async def test_a_change_is_never_repeated_by_itself() -> None:
    async with moody(UNAVAILABLE) as (servicer, address), AsyncClient(address, retries=3) as client:
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            await client.promote_policy(2, reason="test")
        assert servicer.calls == 1


@pytest.mark.parametrize("retries", [-1, 5])
def test_what_grpc_cannot_do_is_refused(retries: int) -> None:
    with pytest.raises(ValueError, match=f"retries: {retries}"):
        Client("127.0.0.1:1", retries=retries)


class Refusals:
    """Counts the calls that were refused."""

    def __init__(self) -> None:
        self.count = 0

    def call_ended(self, call: Call) -> None:
        self.count += call.refusal is not None


async def test_a_full_daemon_says_when_and_a_client_that_retries_comes_back_then() -> None:
    engine, refused = StubEngine(max_running=1, max_waiting=1), Refusals()
    async with (
        served(engine, observers=[refused]) as server,
        AsyncClient(server.address, retries=1) as client,
        AsyncClient(server.address, retries=4) as patient,
    ):
        engine.gate.close()
        running = client.stream("x", max_new_tokens=3)
        await eventually(lambda: engine.load().running + engine.load().waiting == 1)
        began = time.monotonic()
        with pytest.raises(ServiceError, match="RESOURCE_EXHAUSTED") as caught:
            await client.generate("y", max_new_tokens=3)
        told = caught.value.retry_after_seconds
        assert told is not None
        assert time.monotonic() - began >= told
        before = refused.count
        waiting = asyncio.create_task(patient.generate("y", max_new_tokens=3))
        await eventually(lambda: refused.count > before)
        engine.gate.open()
        assert [chunk async for chunk in running]
        assert (await waiting).completion_tokens == 3
