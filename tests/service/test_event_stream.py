"""Events cross from the engine's thread in order, and a slow reader costs one merged event."""

from __future__ import annotations

import asyncio
import threading

import pytest

from respsd.engine.events import (
    FinishReason,
    PromptScored,
    RequestFailed,
    RequestFinished,
    TokenLogProb,
    TokensCommitted,
    Usage,
)
from respsd.errors import EngineFault
from respsd.service.event_stream import EventStream, Part, together

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
    assert events == [Part(tuple(range(1000)), "x" * 1000, finished=FINISHED)]
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


def several(samples: int) -> tuple[EventStream, list[str]]:
    ends: list[str] = []
    return EventStream(asyncio.get_running_loop(), lambda: ends.append("end"), samples), ends


async def test_samples_are_told_apart_and_each_ends_by_itself():
    stream, ends = several(2)
    score = TokenLogProb(5, -0.5)
    stream.delivery(0)(PromptScored((TokenLogProb(1, None),)))
    stream.delivery(1)(TokensCommitted((5,), "b", (score,)))
    stream.delivery(1)(FINISHED)
    stream.delivery(0)(TokensCommitted((4,), "a"))
    parts = [await anext(stream), await anext(stream)]
    assert sorted(parts, key=lambda part: part.sample) == [
        Part((4,), "a", prompt_log_probs=(TokenLogProb(1, None),)),
        Part((5,), "b", (score,), finished=FINISHED, sample=1),
    ]
    assert (stream.is_over, stream.end, ends) == (False, None, [])
    stream.delivery(0)(FINISHED)
    assert [part async for part in stream] == [Part(finished=FINISHED)]
    assert (stream.is_over, ends) == (True, ["end"])
    assert stream.committed_tokens == 2


async def test_a_busy_sample_holds_up_no_other():
    stream, _ = several(3)
    order = []
    for _ in range(6):
        for sample in range(3):
            stream.delivery(sample)(TokensCommitted((sample,), "x"))
        order.append((await anext(stream)).sample)
    assert order == [0, 1, 2, 0, 1, 2]


async def test_the_failure_of_one_sample_is_the_requests_while_others_still_run():
    stream, ends = several(2)
    stream.delivery(1)(RequestFailed(EngineFault("broken")))
    with pytest.raises(EngineFault):
        await anext(stream)
    assert isinstance(stream.end, RequestFailed)
    assert (stream.is_over, ends) == (False, [])
    stream.delivery(0)(FINISHED)
    await asyncio.sleep(0)
    assert (stream.is_over, ends) == (True, ["end"])


async def test_samples_that_the_engine_did_not_take_are_not_waited_for():
    stream, ends = several(3)
    stream.delivery(0)(FINISHED)
    stream.expect_only(1)
    assert [part.finished async for part in stream] == [FINISHED]
    assert ends == ["end"]


def test_the_samples_of_a_request_are_one_in_its_log_line():
    second = RequestFinished(FinishReason.EOS, Usage(1, 4), 8, 2, 5, 3, 1, 2, decode_seconds=2.0)
    assert together([FINISHED]) == FINISHED
    whole = together([FINISHED, second])
    assert (whole.reason, whole.usage, whole.seed) == (FinishReason.LENGTH, Usage(1, 7), 0)
    assert (whole.steps, whole.drafted_tokens, whole.accepted_tokens, whole.decode_seconds) == (3, 5, 3, 2.0)
