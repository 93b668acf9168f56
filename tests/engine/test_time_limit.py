"""A request's own time limit ends it with what it has, running or waiting, and is no error."""

from __future__ import annotations

import dataclasses

import pytest
from support.engines import AheadClock, load_tiny, request, running, static_router
from support.listening import Gate, Listener

from respsd.control.action import OFF, Action
from respsd.engine.events import FinishReason, RequestFinished
from respsd.engine.loop import LoopLimits
from respsd.engine.request import GenerationRequest, StoppingParams

PROMPT = [1, 40, 17, 99, 254, 3, 60]


def limited(seconds: float, new_tokens: int = 200, action: Action | None = None) -> GenerationRequest:
    stopping = StoppingParams(new_tokens, ignore_eos=True, time_limit_seconds=seconds)
    return dataclasses.replace(request(PROMPT, action=action), stopping=stopping)


def gated():
    gate = Gate()
    router = static_router(Action(8, 3, 3))
    router.swap("champion", gate)
    return gate, running(load_tiny(), router, persistence=1, limits=LoopLimits(max_running=1))


def test_a_running_request_ends_with_a_beginning_of_its_output():
    gate, context = gated()
    with context as rig:
        whole = rig.generate(request(PROMPT, 200, action=OFF))
        clock = rig.engine._clock = AheadClock()
        listener = Listener()
        rig.engine.submit(limited(1000.0), listener)
        assert gate.reached.wait(60)  # in its first step, where it is held until its time is over
        clock.ahead_seconds = 1000.0
        gate.go.set()
        finished = listener.last()
        assert isinstance(finished, RequestFinished)
        assert finished.reason is FinishReason.TIME_LIMIT
        assert finished.steps == 1
        assert 1 < len(listener.tokens) == finished.usage.completion_tokens < 200
        assert tuple(listener.tokens) == whole.token_ids[: len(listener.tokens)]
        assert rig.engine.load().kv_tokens_reserved == 0


def test_a_waiting_request_ends_without_having_started():
    gate, context = gated()
    with context as rig:
        first, second = Listener(), Listener()
        rig.engine.submit(request(PROMPT, 5), first)
        assert gate.reached.wait(60)
        rig.engine.submit(limited(1e-9), second)
        gate.go.set()
        finished = second.last()
        assert isinstance(finished, RequestFinished)
        assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.TIME_LIMIT, 0)
        assert isinstance(first.last(), RequestFinished)
        assert len(first.tokens) == 5


@pytest.mark.parametrize("action", [OFF, Action(16, 4, 4)], ids=str)
def test_a_limit_that_does_not_pass_changes_nothing(action):
    with running(load_tiny()) as rig:
        free = rig.generate(request(PROMPT, 30, action=action))
        ended = rig.generate(limited(3600.0, 30, action))
    assert ended.token_ids == free.token_ids
    assert ended.finished.reason is FinishReason.LENGTH
