"""Clients that speak something else, say nothing, or never stop pinging: those who are served notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct

import grpc
import pytest
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd_client import AsyncClient
from respsd_client.v1 import generation_pb2, generation_pb2_grpc, policy_pb2, policy_pb2_grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
PINGS = 10_000
SCANS = 500
TOKENS = 400


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """An HTTP/2 frame."""
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


async def say(address: str, data: bytes) -> bytes:
    """What the server answers before it closes, or within half a second."""
    reader, writer = await connect(address)
    with contextlib.suppress(OSError):
        writer.write(data)
        await writer.drain()
    answer = b""
    with contextlib.suppress(TimeoutError, OSError):
        answer = await asyncio.wait_for(reader.read(1 << 16), 0.5)
    writer.close()
    return answer


async def plain_http(address: str) -> None:
    await say(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await say(address, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000)


async def tls_on_the_plain_port(address: str) -> None:
    host, port = address.rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError):
        await asyncio.wait_for(asyncio.open_connection(host, int(port), ssl=context), 2)


async def garbage(address: str) -> None:
    noise = random.Random(7)
    for size in (1, 9, 24, 1000, 70_000):
        await say(address, noise.randbytes(size))
        await say(address, PREFACE + noise.randbytes(size))
    await say(address, PREFACE + SETTINGS + frame(0x1, noise.randbytes(200), flags=0x5, stream=1))  # broken headers
    await say(address, PREFACE + SETTINGS + frame(0x3, b"\0\0\0\x08", stream=1))  # a reset of nothing
    await say(address, PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")  # a frame of 16 MiB


async def many_pings(address: str) -> None:
    """10,000 pings on one connection, each of which is answered."""
    reader, writer = await connect(address)
    writer.write(PREFACE + SETTINGS)
    answered = 0
    for start in range(0, PINGS, 500):
        writer.write(b"".join(frame(0x6, struct.pack("!Q", start + each)) for each in range(500)))
        await writer.drain()
        while answered < start + 500:
            head = await asyncio.wait_for(reader.readexactly(9), 60)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            assert head[3] != 0x7, "the server said goodbye"
            answered += head[3] == 0x6 and head[4] == 0x1
    writer.close()


async def scan(address: str) -> None:
    """A port scan's worth of connections that are closed, or reset, as soon as they are there."""
    host, port = address.rsplit(":", 1)
    for number in range(SCANS):
        with socket.socket() as each:
            each.setblocking(False)
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_connect(each, (host, int(port))), 5)
            if number % 2:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell


def half_open(address: str, count: int) -> list[socket.socket]:
    """Connections that begin and then say nothing, some in the middle of a sentence."""
    host, port = address.rsplit(":", 1)
    opened = [socket.create_connection((host, int(port))) for _ in range(count)]
    for index, each in enumerate(opened):
        each.send((b"", PREFACE[:10], PREFACE, PREFACE + SETTINGS + b"\x00\x00\x10\x01")[index % 4])
    return opened


async def pace(engine: StubEngine, ended: asyncio.Event) -> None:
    """Let the engine step now and then, so that the served stream lasts for as long as the rude ones are at it."""
    while not ended.is_set():
        engine.gate.allow(1)
        await asyncio.sleep(0.02)
    engine.gate.open()


async def test_served_clients_notice_nothing_of_rude_ones():
    engine = StubEngine(context_length=10**6)
    async with served(engine) as server, AsyncClient(server.address) as client:
        expected = await client.generate("x", max_new_tokens=TOKENS, ignore_eos=True)
        engine.gate.close()
        ended = asyncio.Event()
        pacing = asyncio.create_task(pace(engine, ended))
        stream = client.stream("x", max_new_tokens=TOKENS, ignore_eos=True)
        first = await anext(stream)
        silent = half_open(server.address, 100)
        await asyncio.gather(
            plain_http(server.address),
            tls_on_the_plain_port(server.address),
            garbage(server.address),
            many_pings(server.address),
            scan(server.address),
        )
        for each in silent[::2]:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
            each.close()
        ended.set()
        text = first.text + "".join([chunk.text async for chunk in stream])
        assert (text, stream.result.completion_tokens) == (expected.text, TOKENS)
        await pacing
        again = await client.generate("x", max_new_tokens=TOKENS, ignore_eos=True)
        assert again.text == expected.text
        await eventually(lambda: engine.load().running == engine.load().waiting == 0)
        for each in silent:
            each.close()


async def test_messages_that_are_none_are_refused_by_name_and_harm_nobody():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        noise = random.Random(3)
        for method in ("GenerationService/Generate", "PolicyService/ListPolicies", "StatusService/GetStatus"):
            call = channel.unary_unary(f"/respsd.v1.{method}")
            for data in (b"\x0a\x7f", b"\xff" * 20, *(b"\x07" + noise.randbytes(size) for size in (1, 50, 3000))):
                with pytest.raises(grpc.aio.AioRpcError, match="not the request's protobuf message") as caught:
                    await call(data)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x"))
        assert (await stub.Generate(request)).text


async def test_a_stream_of_messages_that_are_none_is_refused_too():
    async def noise():
        yield b"\xff" * 20

    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError, match="not the request's protobuf message") as caught:
            [answer async for answer in call(noise())]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_method_that_a_package_declares_and_does_not_have_is_unimplemented():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/List")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_number_that_no_database_can_hold_is_refused_by_name():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"before_id: 9223372036854775808 .* 9223372036854775807"
        ) as caught:
            await stub.ListHistory(policy_pb2.ListHistoryRequest(before_id=2**63))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
