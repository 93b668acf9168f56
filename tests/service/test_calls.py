"""Each request leaves one line in the log, is told to the observers once, and is listed while it runs."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from support.serving import eventually, run_out_of_time, served, submissions

from respsd.engine.events import FinishReason
from respsd.engine.stub import ByteTokenizer, StubEngine
from respsd.service.calls import Call
from respsd.service.daemon_status import Reports
from respsd.service.oip import open_inference_pb2 as oip
from respsd.service.oip import open_inference_pb2_grpc as oip_grpc
from respsd.telemetry.totals import ArmTotals, Totals
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

TRACE = "0af7651916cd43dd8448eb211c80319c"
ENDS = ("request_finished", "request_abandoned", "call_refused", "call_failed")


class Watcher:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def call_ended(self, call: Call) -> None:
        self.calls.append(call)


class Broken:
    """Fails at everything."""

    def call_ended(self, call: Call) -> None:
        raise RuntimeError("broken")


class HeldTokenizer(ByteTokenizer):
    """Says that it is asked, and waits."""

    def __init__(self, asked: threading.Event, go_on: threading.Event) -> None:
        self._asked, self._go_on = asked, go_on

    def encode(self, text: str) -> list[int]:
        self._asked.set()
        self._go_on.wait(60)
        return super().encode(text)


async def test_every_kind_of_end_is_one_line_and_one_call():
    engine, watcher = StubEngine(context_length=10**9), Watcher()
    async with served(engine, observers=[Broken(), watcher]) as server, AsyncClient(server.address) as client:
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            await client.generate("x", max_new_tokens=3, request_id="finished")
            with pytest.raises(ServiceError):
                await client.generate("x", temperature=-1.0, request_id="refused")
            engine.gate.close()
            stream = client.stream("x", max_new_tokens=10**8, request_id="cancelled")
            engine.gate.allow(1)
            await anext(stream)
            stream.cancel()
            await eventually(lambda: len(watcher.calls) == 3)
            taken = submissions(engine)
            await run_out_of_time(
                lambda seconds: client.generate("x", max_new_tokens=3, timeout=seconds, request_id=f"late{seconds}"),
                lambda: bool(taken),
            )
            await eventually(lambda: len(watcher.calls) > 3 and not server._calls.active)
            engine.gate.open()
            engine.submit = lambda request, deliver: 1 / 0  # type: ignore[method-assign,assignment]
            with pytest.raises(ServiceError, match="INTERNAL"):
                await client.generate("x", request_id="failed")
    assert watcher.calls[0].finished is not None
    assert watcher.calls[0].finished.reason is FinishReason.LENGTH
    late = [call for call in watcher.calls if call.request_id.startswith("late")]
    assert taken[0] in [call.request_id for call in late]
    # The client's own clock may end the call first, which the server then sees as a cancel.
    assert {call.code for call in late} <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
    assert {call.request_id: call.code for call in watcher.calls if call not in late} == {
        "finished": grpc.StatusCode.OK,
        "refused": grpc.StatusCode.INVALID_ARGUMENT,
        "cancelled": grpc.StatusCode.CANCELLED,
        "failed": grpc.StatusCode.INTERNAL,
    }
    assert all(call.seconds > 0 and call.is_generation for call in watcher.calls)
    own = [line["request_id"] for line in lines if line["event"] in ENDS]
    assert sorted(own) == sorted(call.request_id for call in watcher.calls)


@pytest.mark.parametrize("method", ["generate", "stream", "infer"])
@pytest.mark.parametrize("way", ["cancel", "deadline"])
async def test_a_request_that_is_abandoned_while_it_is_read_is_one_line(method: str, way: str) -> None:
    """The engine, which has the others' ends logged, never heard of it."""
    engine, watcher, reading, go_on = StubEngine(), Watcher(), threading.Event(), threading.Event()

    engine.tokenizer = HeldTokenizer(reading, go_on)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        async with served(engine, observers=[watcher]) as server, grpc.aio.insecure_channel(server.address) as channel:
            begin = partial(_begin, channel, method)
            try:
                if way == "deadline":
                    await run_out_of_time(lambda seconds: _read(begin(timeout=seconds)), reading.is_set)
                else:
                    call = begin(timeout=None)
                    await eventually(reading.is_set)
                    call.cancel()
                await eventually(lambda: bool(watcher.calls) and not server._calls.active)
            finally:
                go_on.set()
    ended = [line for line in lines if line["event"] in ENDS]
    assert len(ended) == len(watcher.calls)  # more than one where a deadline passed before the call was read
    abandoned = {(line["request_id"], line["code"]) for line in ended if line["event"] == "request_abandoned"}
    assert abandoned & {(call.request_id, call.code.name) for call in watcher.calls}
    assert all(line["seconds"] > 0 for line in ended)


async def test_the_line_of_an_abandoned_call_that_generates_nothing_is_not_written() -> None:
    """As there is none where it ends well."""
    engine, watcher, asked, go_on = StubEngine(), Watcher(), threading.Event(), threading.Event()

    engine.tokenizer = HeldTokenizer(asked, go_on)
    with structlog.testing.capture_logs() as lines:
        async with served(engine, observers=[watcher]) as server, AsyncClient(server.address) as client:
            call = asyncio.create_task(client.tokenize("x"))
            await eventually(asked.is_set)
            call.cancel()
            await eventually(lambda: len(watcher.calls) == 1)
            go_on.set()
    assert [line for line in lines if line["event"] in ENDS] == []


async def _read(call: Any) -> None:
    """To its end, whether it streams or not."""
    if isinstance(call, grpc.aio.UnaryStreamCall):
        async for _ in call:
            pass
    else:
        await call


def _begin(channel: grpc.aio.Channel, method: str, timeout: float | None) -> Any:
    """A call of this method."""
    metadata = (("x-request-id", f"left-after-{timeout}"),)  # another try may come before this one's end
    if method == "infer":
        asked = oip.ModelInferRequest(model_name="stub")
        asked.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"x")
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        return stub.ModelInfer(asked, metadata=metadata, timeout=timeout)
    prompt, service = generation_pb2.Prompt(text="x"), generation_pb2_grpc.GenerationServiceStub(channel)
    if method == "stream":
        streamed = generation_pb2.GenerateStreamRequest(prompt=prompt)
        return service.GenerateStream(streamed, metadata=metadata, timeout=timeout)
    return service.Generate(generation_pb2.GenerateRequest(prompt=prompt), metadata=metadata, timeout=timeout)


async def test_the_callers_trace_is_on_the_lines_of_its_request_only():
    watcher = Watcher()
    async with (
        served(StubEngine(), observers=[watcher]) as server,
        grpc.aio.insecure_channel(server.address) as channel,
        AsyncClient(server.address) as client,
    ):
        request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="x"))
        metadata = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),)
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            await generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, metadata=metadata)
            await client.generate("x", max_new_tokens=1)
    traced = [line.get("trace_id") for line in lines if line["event"] == "request_finished"]
    assert traced == [TRACE, None]
    assert watcher.calls[0].trace is not None
    assert watcher.calls[0].trace.sampled


async def test_requests_are_listed_while_they_run():
    engine = StubEngine(max_running=1, context_length=10**6)
    async with served(engine) as server, AsyncClient(server.address) as client:
        assert await client.list_requests() == []
        engine.gate.close()
        first = asyncio.create_task(client.generate("four", max_new_tokens=1000, request_id="first"))
        await eventually(lambda: engine.load().waiting == 1)
        engine.gate.allow(3)
        await eventually(lambda: engine.load().running == 1)
        second = asyncio.create_task(client.generate("x", max_new_tokens=5, request_id="second"))
        await eventually(lambda: engine.load().waiting == 1)
        while (listed := await client.list_requests())[0].generated_tokens < 9:  # one of the prefill, four of each step
            await asyncio.sleep(0.01)
        assert [(each.request_id, each.state, each.caller) for each in listed] == [
            ("first", "generating", "anyone"),
            ("second", "waiting", "anyone"),
        ]
        assert [(each.prompt_tokens, each.generated_tokens, each.max_new_tokens) for each in listed] == [
            (4, 9, 1000),
            (1, 0, 5),
        ]
        assert all(each.age_seconds > 0 for each in listed)
        load = await client.load()
        assert (load.running, load.waiting, load.accepting) == (1, 1, True)
        engine.gate.open()
        await asyncio.gather(first, second)


async def test_status_tells_what_is_served_and_counted():
    totals = Totals({"champion": ArmTotals(5, 0.5)}, 9, 3, {"off": 1, "4,1,2": 2}, {"OK": 7}, 4)
    reports = Reports(lambda: {"champion": 2, "baseline": None}, lambda: totals)
    now = [0.0]
    engine = StubEngine(clock=lambda: now[0])
    async with served(engine, reports=reports) as server, AsyncClient(server.address) as client:
        status = await client.status()
        assert (status.phase, status.healthy, status.load.accepting) == ("ready", True, True)
        assert (status.target, status.drafter, status.dtype, status.device) == (
            "stub",
            "stub-drafter",
            "float32",
            "cpu",
        )
        assert status.addresses == (server.address,)
        assert status.policies == {"champion": 2, "baseline": None}
        assert (status.totals.arms["champion"].tokens, status.totals.arms["champion"].decode_seconds) == (5, 0.5)
        assert (status.totals.drafted_tokens, status.totals.accepted_tokens) == (9, 3)
        assert (status.totals.actions, status.totals.requests) == ({"off": 1, "4,1,2": 2}, {"OK": 7})
        assert status.totals.action_switches == 4

        engine.gate.close()
        running = asyncio.create_task(client.generate("x", max_new_tokens=1))
        await eventually(lambda: engine.load().waiting == 1)
        now[0] += 100
        wedged = await client.status()
        assert (wedged.healthy, wedged.load.accepting) == (False, False)
        assert wedged.load.seconds_since_progress == 100
        engine.gate.open()
        await running


async def test_a_draining_daemon_says_so_and_takes_nothing():
    engine = StubEngine(context_length=10**9)
    async with served(engine) as server, AsyncClient(server.address) as client:
        stream = client.stream("x", max_new_tokens=10**8)
        await anext(stream)
        stopping = asyncio.create_task(server.stop(grace_seconds=3600))
        await asyncio.sleep(0)
        status = await client.status()
        assert (status.phase, status.load.accepting) == ("draining", False)
        server.cut_off()
        await stopping
