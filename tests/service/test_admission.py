"""Who is let in: callers' shares, priorities, time limits and deadlines in the queue, and what refusals tell."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import grpc
import pytest
from support.serving import eventually, run_out_of_time, served, submissions

from respsd.engine.queue import QueueLimits
from respsd.engine.request import Priority
from respsd.engine.stub import StubEngine
from respsd.errors import DeadlineExceeded
from respsd.service.auth import ANYONE, Access, Caller, Role, Tokens, use_caller
from respsd.service.calls import Call
from respsd.service.concurrency import Concurrency, client_of
from respsd.service.limits import Limits
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

ALICE, BOB = "a-token-of-many-letters", "another-token-of-many"


class Ended:
    """Keeps the calls that ended."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def call_ended(self, call: Call) -> None:
        self.calls.append(call)

    @property
    def refusals(self) -> list[str | None]:
        return [call.refusal for call in self.calls]


async def test_a_caller_holds_no_more_than_its_share_and_others_go_on(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"alice generate {ALICE}\nbob generate {BOB}\n")
    file.chmod(0o600)
    engine, ended = StubEngine(), Ended()
    access, limits = Access(Tokens.read(file)), Limits(max_client_requests=2)
    async with (
        served(engine, access=access, limits=limits, observers=[ended]) as server,
        AsyncClient(server.address, token=ALICE) as alice,
        AsyncClient(server.address, token=ALICE) as alice_elsewhere,
        AsyncClient(server.address, token=BOB) as bob,
    ):
        engine.gate.close()
        held = [asyncio.create_task(each.generate("x", max_new_tokens=2)) for each in (alice, alice_elsewhere)]
        await eventually(lambda: engine.load().waiting == 2)
        with pytest.raises(
            ServiceError, match=r"share of requests is full: 2 of 2, set by admission\.max_client"
        ) as caught:
            await alice.generate("y")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after_seconds == 1.0
        others = asyncio.create_task(bob.generate("z", max_new_tokens=2))
        await eventually(lambda: engine.load().waiting == 3)
        engine.gate.open()
        await asyncio.gather(*held, others)
        assert (await alice.generate("again", max_new_tokens=2)).completion_tokens == 2
    assert ended.refusals.count("client_requests") == 1
    assert ended.refusals.count(None) == 4


async def test_a_share_is_given_back_whatever_the_end():
    engine, ended = StubEngine(before_step=lambda _request, step: 1 // step), Ended()  # every prefill fails
    limits = Limits(max_client_requests=1)
    async with (
        served(engine, limits=limits, observers=[ended]) as server,
        AsyncClient(server.address) as client,
    ):
        for prompt in ("", "x"):
            with pytest.raises(ServiceError, match="INVALID_ARGUMENT" if not prompt else "INTERNAL"):
                await client.generate(prompt)
        engine.gate.close()
        abandoned = asyncio.create_task(client.generate("x"))
        await eventually(lambda: engine.load().waiting == 1)
        abandoned.cancel()
        engine.gate.open()
        await eventually(lambda: len(ended.calls) == 3)
        with pytest.raises(ServiceError, match="INTERNAL"):
            await client.generate("x")


async def test_tokenizing_counts_as_a_request():
    engine = StubEngine()
    async with served(engine, limits=Limits(max_in_flight=1)) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        held = asyncio.create_task(client.generate("x", max_new_tokens=2))
        await eventually(lambda: engine.load().waiting == 1)
        with pytest.raises(ServiceError, match="1 of 1"):
            await client.tokenize("y")
        engine.gate.open()
        await held
        assert (await client.tokenize("y")).token_ids == (ord("y"),)


@pytest.mark.parametrize(
    ("caller", "peer", "client"),
    [
        (ANYONE, "ipv4:10.0.0.7:40112", "ipv4:10.0.0.7"),
        (ANYONE, "ipv6:%5Bfe80::1%5D:40112", "ipv6:%5Bfe80::1%5D"),
        (ANYONE, "unix-abstract:%00respsd-a-3", "unix-abstract"),
        (Caller("alice", Role.GENERATE), "ipv4:10.0.0.7:40112", "caller:alice"),
        (Caller("ann@localhost", Role.GENERATE), "unix-abstract:%00respsd-a-3", "caller:ann@localhost"),
    ],
)
async def test_who_proved_nothing_shares_with_their_address(caller, peer, client):
    use_caller(caller)
    assert client_of(peer) == client


async def test_concurrency_forgets_clients_that_are_gone():
    concurrency = Concurrency()
    for number in range(100):
        with concurrency.counted(f"client-{number}", Limits(max_client_requests=1)):
            assert concurrency.total == 1
    assert (concurrency.total, len(concurrency._by_client)) == (0, 0)
    await concurrency.wait_idle()


async def test_priorities_start_in_their_order_and_unknown_ones_are_refused():
    seen: list[Priority] = []
    engine = StubEngine(
        max_running=1, before_step=lambda request, step: seen.append(request.priority) if step == 0 else None
    )
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        tasks = []
        for number, priority in enumerate(("low", None, "high"), start=1):
            tasks.append(asyncio.create_task(client.generate("x", max_new_tokens=1, priority=priority)))
            await eventually(lambda number=number: engine.load().waiting == number)
        load = (await client.status()).load
        assert load.waiting_by_priority == {"low": 1, "normal": 1, "high": 1}
        engine.gate.open()
        await asyncio.gather(*tasks)
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            message = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x"), priority=77)  # type: ignore[arg-type]
            with pytest.raises(grpc.aio.AioRpcError, match="priority: 77"):
                await stub.Generate(message)
    assert seen == [Priority.HIGH, Priority.NORMAL, Priority.LOW]


async def test_a_request_whose_deadline_passes_in_the_queue_never_starts(monkeypatch):
    # Which of two clocks ends the call first is another test's matter: here both ends are the deadline's.
    monkeypatch.setattr("respsd.service.interceptor._DEADLINE_SKEW_SECONDS", 3600.0)
    started: list[str] = []
    engine, ended = StubEngine(before_step=lambda request, _step: started.append(request.request_id)), Ended()
    async with served(engine, observers=[ended]) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        taken = submissions(engine)
        await run_out_of_time(
            lambda seconds: client.generate("x", request_id=f"hurried{seconds}", timeout=seconds), lambda: bool(taken)
        )
        await eventually(lambda: bool(ended.calls) and not server._calls.active)
        engine.gate.open()
        await client.generate("x", request_id="patient", max_new_tokens=1)
    assert set(started) == {"patient"}
    (hurried,) = [call for call in ended.calls if call.request_id == taken[0]]
    assert hurried.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert hurried.refusal == "deadline"


async def test_the_engine_itself_drops_what_is_past_its_deadline():
    """Where its cancellation by gRPC comes too late: the answer is the same."""
    engine, failed = StubEngine(), list[Any]()
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        asked = server._reader.read(
            generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x")), request_id="past"
        )
        engine.submit(dataclasses.replace(asked, deadline_ns=time.perf_counter_ns() + 1), failed.append)
        engine.gate.open()
        await client.generate("y", max_new_tokens=1)
    assert [type(event.error) for event in failed] == [DeadlineExceeded]


async def test_the_queues_time_limit_ends_with_a_time_to_try_again():
    engine, ended = StubEngine(max_running=1, queue=QueueLimits(max_seconds=0.3)), Ended()
    async with served(engine, observers=[ended]) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        waiting = asyncio.create_task(client.generate("x"))
        await eventually(lambda: engine.load().queue.oldest_seconds > 0.3)
        engine.gate.open()
        with pytest.raises(
            ServiceError, match=r"waited \d+\.\d s for a place, to the limit, admission\.max_queue_seconds"
        ) as (caught):
            await waiting
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.retry_after_seconds == 1.0
    assert ended.refusals == ["queue_time"]


async def test_a_full_queue_is_answered_at_once_and_before_the_prompt_is_read():
    """Refusals come within a moment, though reading these prompts would take the daemon's threads a second each."""
    engine, ended = StubEngine(max_running=1, max_waiting=3), Ended()
    encode, read = engine.tokenizer.encode, list[str]()

    def slowly(text: str) -> list[int]:
        read.append(text)
        if len(text) > 1:
            time.sleep(1.0)
        return encode(text)

    engine.tokenizer.encode = slowly  # type: ignore[method-assign]
    async with served(engine, observers=[ended]) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        held = [asyncio.create_task(client.generate("x", max_new_tokens=1)) for _ in range(3)]
        await eventually(lambda: engine.load().waiting == 3)
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            with pytest.raises(ServiceError, match=r"the queue is full: 3 of 3, set by engine\.max_waiting"):
                await client.generate("long" * 500)
            seconds.append(time.perf_counter() - began)
        assert read == ["x"] * 3
        assert min(seconds) < 0.5  # the least, as the machine may do other things besides
        engine.gate.open()
        await asyncio.gather(*held)
    assert ended.refusals.count("queue_requests") == 20


async def test_the_load_tells_of_every_limit_and_whether_a_request_would_be_taken():
    engine = StubEngine(max_running=2, queue=QueueLimits(max_requests=3, max_tokens=100, max_seconds=60.0))
    limits = Limits(max_in_flight=50, max_client_requests=9)
    async with served(engine, limits=limits) as server, AsyncClient(server.address) as client:
        idle = await client.load()
        assert (idle.accepting, idle.max_running, idle.max_waiting, idle.max_waiting_tokens) == (True, 2, 3, 100)
        assert (idle.max_in_flight, idle.max_client_requests, idle.max_queue_seconds) == (50, 9, 60.0)
        assert (idle.in_flight, idle.waiting_tokens, idle.expected_wait_seconds) == (0, 0, 0.0)
        engine.gate.close()
        held = [asyncio.create_task(client.generate("x", max_new_tokens=9, priority="high")) for _ in range(3)]
        await eventually(lambda: engine.load().waiting == 3)
        full = await client.load()
        assert (full.accepting, full.waiting, full.in_flight, full.waiting_tokens) == (False, 3, 3, 30)
        assert full.waiting_by_priority == {"low": 0, "normal": 0, "high": 3}
        assert full.oldest_waiting_seconds > 0
        assert full.expected_wait_seconds is None
        engine.gate.open()
        await asyncio.gather(*held)
        assert (await client.load()).accepting
