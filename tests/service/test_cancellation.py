"""Whoever stops listening frees the engine within one step: cancel, deadline, slow readers, lost connections."""

from __future__ import annotations

import asyncio
import threading

import grpc
import pytest
import structlog
from support.serving import eventually, run_out_of_time, served

from respsd.engine.stub import StubEngine
from respsd.service.generation import GenerationServicer
from respsd.service.interceptor import use_request_id
from respsd.service.limits import Limits
from respsd.service.validation import RequestReader
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

ENDLESS = {"max_new_tokens": 10**8, "ignore_eos": True}
LONGEST = {**ENDLESS, "max_new_tokens": 10**6}
"""That an answer in one message may be."""


def endless_engine(**options: object) -> StubEngine:
    return StubEngine(context_length=10**9, next_token=lambda *_: ord("x"), **options)  # type: ignore[arg-type]


async def test_cancel_after_the_first_chunk_frees_the_sequence_within_one_step():
    engine = endless_engine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        stream = client.stream("x", **ENDLESS)
        engine.gate.allow(1)
        await anext(stream)
        cancelled = asyncio.Event()
        engine.cancel = _signalling(engine.cancel, cancelled)  # type: ignore[method-assign]
        stream.cancel()
        await cancelled.wait()
        assert engine.load().running == 1
        engine.gate.allow(1)
        await eventually(lambda: engine.load().running == 0)
        with pytest.raises(ServiceError, match="CANCELLED"):
            await anext(stream)


async def test_deadline_frees_the_sequence_and_is_what_the_caller_sees():
    engine = endless_engine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        with pytest.raises(ServiceError) as caught:
            await client.generate("x", timeout=0.2, **LONGEST)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: engine.load().running == 0)


async def test_cancelled_task_frees_the_sequence_of_a_unary_call():
    engine = endless_engine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        call = asyncio.create_task(client.generate("x", **LONGEST))
        await eventually(lambda: engine.load().running == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: engine.load().running == 0)


async def test_cancel_frees_a_request_that_still_waits():
    engine = endless_engine(max_running=1)
    async with served(engine) as server, AsyncClient(server.address) as client:
        running = client.stream("x", **ENDLESS)
        await anext(running)
        waiting = client.stream("y", **ENDLESS)
        await eventually(lambda: engine.load().waiting == 1)
        waiting.cancel()
        await eventually(lambda: engine.load().waiting == 0)
        assert engine.load().running == 1
        running.cancel()


async def test_closed_client_frees_its_sequences():
    engine = endless_engine()
    async with served(engine) as server:
        async with AsyncClient(server.address) as client:
            streams = [client.stream("x", **ENDLESS) for _ in range(3)]
            for stream in streams:
                await anext(stream)
        await eventually(lambda: engine.load().running == 0)


async def test_deadline_that_has_passed_never_reaches_the_engine():
    engine = endless_engine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        submitted, read, release, encoded = [], threading.Event(), threading.Event(), threading.Event()
        encode = engine.tokenizer.encode

        def slow(text: str) -> list[int]:
            read.set()
            release.wait()
            encoded.set()
            return encode(text)

        engine.submit = lambda request, deliver: submitted.append(request)  # type: ignore[method-assign]
        engine.tokenizer.encode = slow  # type: ignore[method-assign]
        await run_out_of_time(lambda seconds: client.generate("x", timeout=seconds), read.is_set)
        await eventually(lambda: not server._calls.active)
        release.set()
        await eventually(encoded.is_set)
        await client.tokenize("x")
        assert submitted == []


NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
"""A connection that takes little more than is read from it."""

LONG_TOKENS = 400_000
LONG = generation_pb2.GenerateStreamRequest(
    prompt=generation_pb2.Prompt(text="x"), stopping=generation_pb2.Stopping(max_new_tokens=LONG_TOKENS)
)


class SlowReader:
    """A call's context whose first chunk is not taken until `go`; keeps the messages."""

    def __init__(self) -> None:
        self.holding, self.go = asyncio.Event(), asyncio.Event()
        self.messages: list[generation_pb2.GenerateStreamResponse] = []

    async def write(self, message: generation_pb2.GenerateStreamResponse) -> None:
        if message.HasField("chunk") and not self.go.is_set():
            self.holding.set()
            await self.go.wait()
        self.messages.append(message)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"

    def time_remaining(self) -> None:
        """No deadline."""

    def set_trailing_metadata(self, metadata: object) -> None:
        """Nobody looks."""


async def test_what_a_slow_reader_missed_comes_as_one_chunk():
    engine, reader = endless_engine(tokens_per_step=4096), SlowReader()
    engine.start()
    servicer = GenerationServicer(engine, RequestReader(engine.model, engine.tokenizer, Limits(), lambda: 1))
    try:
        use_request_id("slow", reader)  # type: ignore[arg-type]
        call = asyncio.create_task(servicer.GenerateStream(LONG, reader))  # type: ignore[arg-type]
        await reader.holding.wait()
        await eventually(lambda: engine.load().running == 0, 60)  # the engine never waits for the reader
        await asyncio.sleep(0)  # what the engine's thread handed over is taken in
        reader.go.set()
        await call
    finally:
        servicer.close()
        engine.stop()
    chunks = [message.chunk for message in reader.messages if message.HasField("chunk")]
    assert len(chunks) <= 3  # the one that was held, the rest, and what may come as the last is written
    assert sum(len(chunk.token_ids) for chunk in chunks) == LONG_TOKENS
    assert sum(len(chunk.text) for chunk in chunks) == LONG_TOKENS


async def test_a_slow_connection_gets_every_token_once():
    engine = endless_engine(tokens_per_step=4096)
    async with served(engine) as server, grpc.aio.insecure_channel(server.address, options=NARROW) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).GenerateStream(LONG)
        messages = aiter(call)
        assert (await anext(messages)).HasField("started")
        await eventually(lambda: engine.load().running == 0, 60)
        chunks = [message.chunk async for message in messages if message.HasField("chunk")]
    assert sum(len(chunk.token_ids) for chunk in chunks) == LONG_TOKENS
    assert sum(len(chunk.text) for chunk in chunks) == LONG_TOKENS


async def test_cancel_while_a_slow_reader_holds_a_write_up_frees_the_sequence():
    engine = endless_engine(tokens_per_step=4096)
    steps: list[int] = []
    engine._before_step = lambda request, step: steps.append(step)
    async with (
        served(engine) as server,
        grpc.aio.insecure_channel(server.address, options=NARROW) as channel,
    ):
        with structlog.testing.capture_logs() as lines:
            engine.gate.close()
            call = generation_pb2_grpc.GenerationServiceStub(channel).GenerateStream(LONG)
            await call.read()
            engine.gate.allow(50)
            await eventually(lambda: len(steps) >= 50)
            cancelled = asyncio.Event()
            engine.cancel = _signalling(engine.cancel, cancelled)  # type: ignore[method-assign]
            call.cancel()
            await cancelled.wait()
            engine.gate.allow(1)
            await eventually(lambda: engine.load().running == 0)
        assert [line["event"] for line in lines] == ["request_abandoned"]


def _signalling(cancel, event: asyncio.Event):
    """`cancel`, and then the event."""

    def call(request_id: str) -> None:
        cancel(request_id)
        event.set()

    return call
