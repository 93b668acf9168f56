"""Every call has an id, and no exception's own text leaves the daemon."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
import structlog
from support.serving import eventually, served

from respsd.engine.events import RequestFailed
from respsd.engine.request import GenerationRequest, StoppingParams
from respsd.engine.stub import StubEngine
from respsd.errors import DeadlineExceeded, EngineFault, InvalidRequest
from respsd.service.calls import Call, note_request
from respsd.service.event_stream import EventStream
from respsd.service.interceptor import CallInterceptor, _fail, use_request_id
from respsd.service.limits import Limits
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

REQUEST = generation_pb2.GenerateRequest(
    prompt=generation_pb2.Prompt(text="a secret prompt"), stopping=generation_pb2.Stopping(max_new_tokens=2)
)


async def id_of_call(address: str, *, sent: str | None, request=REQUEST) -> tuple[str, str]:
    """The id in the answer and the id in the trailing metadata."""
    async with grpc.aio.insecure_channel(address) as channel:
        metadata = (("x-request-id", sent),) if sent is not None else ()
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, metadata=metadata)
        response = await call
        return response.request_id, dict(await call.trailing_metadata())["x-request-id"]


async def test_request_id_is_taken_echoed_or_made():
    async with served(StubEngine()) as server:
        assert await id_of_call(server.address, sent="trace-7") == ("trace-7", "trace-7")
        made = [await id_of_call(server.address, sent=sent) for sent in (None, None, "has a space", "x" * 129)]
        assert len({answer for answer, _ in made}) == 4
        assert all(answer == trailing and " " not in answer for answer, trailing in made)
        named = generation_pb2.GenerateRequest()
        named.CopyFrom(REQUEST)
        named.request_id = "of-the-message"
        assert await id_of_call(server.address, sent="trace-7", request=named) == ("of-the-message",) * 2


async def test_the_longest_id_is_a_setting_that_holds_for_metadata_and_message():
    async with served(StubEngine(), limits=Limits(max_request_id=8)) as server:
        assert await id_of_call(server.address, sent="x" * 8) == ("x" * 8,) * 2
        assert "x" not in (await id_of_call(server.address, sent="x" * 9))[0]
        server.use_limits(Limits(max_request_id=9))
        assert await id_of_call(server.address, sent="x" * 9) == ("x" * 9,) * 2
        async with AsyncClient(server.address) as client:
            with pytest.raises(ServiceError, match="1 to 9 visible") as caught:
                await client.generate("x", request_id="x" * 10)
        assert [each.field for each in caught.value.field_violations] == ["request_id"]


async def test_uncaught_exception_is_internal_without_its_text_but_with_an_id():
    engine = StubEngine()

    def broken(request, deliver):
        raise ValueError("/secret/path")

    engine.submit = broken  # type: ignore[method-assign]
    async with served(engine) as server, AsyncClient(server.address) as client:
        for call in (lambda: client.generate("x"), lambda: anext(client.stream("x"))):
            with structlog.testing.capture_logs() as lines, pytest.raises(ServiceError) as caught:
                await call()
            assert caught.value.code is grpc.StatusCode.INTERNAL
            assert "secret" not in caught.value.message
            assert "ValueError" not in caught.value.message
            assert caught.value.request_id is not None
            assert caught.value.request_id in caught.value.message
            (line,) = [line for line in lines if line["event"] == "call_failed"]
            assert "/secret/path" in str(line["exc_info"])
            assert line["log_level"] == "error"


async def test_failed_call_leaves_the_next_one_alone():
    engine = StubEngine()
    submit = engine.submit
    engine.submit = lambda request, deliver: 1 / 0  # type: ignore[method-assign,assignment]
    async with served(engine) as server, AsyncClient(server.address) as client:
        with pytest.raises(ServiceError, match="INTERNAL"):
            await client.generate("x", request_id="one")
        engine.submit = submit  # type: ignore[method-assign]
        assert (await client.generate("x", request_id="one", max_new_tokens=3)).completion_tokens == 3


async def test_log_has_lengths_and_ids_and_never_a_prompt_or_its_answer():
    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        with structlog.testing.capture_logs() as lines:
            result = await client.generate("a secret prompt", max_new_tokens=30)
            with pytest.raises(ServiceError):
                await client.generate("a secret prompt", stop=["a secret stop" * 30])
    text = str(lines)
    assert "secret" not in text
    assert result.text not in text
    (finished,) = [line for line in lines if line["event"] == "request_finished"]
    assert (finished["prompt_tokens"], finished["completion_tokens"]) == (15, 30)
    assert 0 < finished["read_seconds"] < finished["seconds"]
    (refused,) = [line for line in lines if line["event"] == "call_refused"]
    assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "stopping.stop_strings[0]")


async def test_unknown_methods_are_unimplemented():
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/respsd.v1.GenerationService/Nothing")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


class LeavingCaller:
    """A call's context whose caller goes away just as the status is sent."""

    def done(self) -> bool:
        return False

    async def abort(self, *_: object) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')

    def set_trailing_metadata(self, metadata: object) -> None:
        """Nobody looks."""


async def test_a_caller_who_leaves_as_the_status_is_sent_is_no_fault_of_the_daemons():
    context = LeavingCaller()
    use_request_id("leaving", context)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await _fail(DeadlineExceeded("the deadline passed"), context, Call("/Generate", "leaving"))  # type: ignore[arg-type]
    assert [line["log_level"] for line in lines] == ["info"]


class GoneCaller(LeavingCaller):
    """A call's context whose caller has gone."""

    def done(self) -> bool:
        return True

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None


async def _lines_of(error: BaseException, events: EventStream | None = None) -> list[str]:
    """What the log says of a request that ends so behind its caller's back. :param events: the engine had it."""

    async def end() -> None:
        async with CallInterceptor()._handled("/respsd.v1.GenerationService/Generate", GoneCaller()):  # type: ignore[arg-type]
            if events is not None:
                note_request(GenerationRequest("gone", (1,), StoppingParams(1)), events)
            raise error

    with structlog.testing.capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await end()
    return [line["event"] for line in lines]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InvalidRequest("prompt", "", "it must have at least 1 token"), "call_refused"),
        (ZeroDivisionError(), "call_failed"),
        (grpc.aio.UsageError("RPC already finished."), "request_abandoned"),
        (grpc.aio.InternalError('Failed "execute_batch"'), "request_abandoned"),
        (asyncio.CancelledError(), "request_abandoned"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_behind_a_gone_callers_back_is_one_line(error: BaseException, line: str) -> None:
    assert await _lines_of(error) == [line]
    events = EventStream(asyncio.get_running_loop(), lambda: None)
    assert await _lines_of(error, events) == []  # GenerationService has written it


async def test_a_request_that_the_engine_failed_as_its_caller_left_is_one_line() -> None:
    """GenerationService leaves it to the interceptor."""
    events, error = EventStream(asyncio.get_running_loop(), lambda: None), EngineFault("a step failed")
    events.deliver(RequestFailed(error))
    await eventually(lambda: events.is_over)
    assert await _lines_of(error, events) == ["call_failed"]
