"""Events cross from the engine's thread in order, and a slow reader costs one merged event."""

from __future__ import annotations

import asyncio
import threading

import pytest

from respsd.engine.events import FinishReason, RequestFailed, RequestFinished, TokensCommitted, Usage
from respsd.errors import EngineFault
from respsd.service.event_stream import EventStream

FINISHED = RequestFinished(FinishReason.LENGTH, Usage(1, 3), 0, 1, 0, 0, None, None)


def make() -> tuple[EventStream, list[str]]:
    ends: list[str] = []
    return EventStream(asyncio.get_running_loop(), lambda: ends.append("end")), ends


async def test_tokens_that_arrive_while_nobody_reads_are_one_event():
    stream, ends = make()
    for number in range(1000):
        stream.deliver(TokensCommitted((number,), "x"))
    stream.deliver(FINISHED)
    events = [event async for event in stream]
    assert events == [TokensCommitted(tuple(range(1000)), "x" * 1000)]
    assert stream.finished == FINISHED
    assert ends == ["end"]


async def test_reader_is_woken_from_another_thread():
    stream, _ = make()
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    thread = threading.Thread(target=stream.deliver, args=(TokensCommitted((7,), ""),))
    thread.start()
    assert (await waiting).token_ids == (7,)  # tokens without text count as an event
    thread.join()


async def test_failure_comes_after_the_tokens_before_it():
    stream, _ = make()
    stream.deliver(TokensCommitted((1,), "a"))
    stream.deliver(RequestFailed(EngineFault("broken")))
    assert (await anext(stream)).text == "a"
    with pytest.raises(EngineFault):
        await anext(stream)
    with pytest.raises(RuntimeError):
        _ = stream.finished


def test_delivering_after_the_loop_has_closed_does_not_raise():
    loop = asyncio.new_event_loop()
    stream = EventStream(loop, lambda: None)
    loop.close()
    stream.deliver(FINISHED)
