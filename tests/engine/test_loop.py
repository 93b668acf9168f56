"""The loop: joins, leaves, cancels, faults, limits, and what is left of each request."""

from __future__ import annotations

import dataclasses
import math
import threading
import time

import numpy as np
import pytest
import torch
from support import models as tiny_models
from support import tiny
from support.engines import AheadClock, Rig, load_tiny, plain, request, running, static_router
from support.listening import Gate, Listener

from respsd.control.action import OFF, Action
from respsd.engine.events import FinishReason, RequestFailed, RequestFinished
from respsd.engine.local_run import run
from respsd.engine.loop import LoopLimits
from respsd.engine.queue import QueueLimits
from respsd.engine.request import Priority, SamplingParams
from respsd.errors import (
    DeadlineExceeded,
    EngineFault,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    QueueTooSlow,
    UnknownPolicy,
)

PROMPT = [1, 40, 17, 99, 254, 3, 60]


def gated(limits: LoopLimits | None = None, **options: object):
    gate = Gate()
    router = static_router(Action(8, 3, 3))
    router.swap("champion", gate)
    return gate, running(load_tiny(), router, persistence=1, limits=limits, **options)  # type: ignore[arg-type]


def test_batch_mates_change_nothing():
    """Different prompts, actions, seeds and lengths at once give what each gives alone."""
    requests = [
        {"prompt": PROMPT, "new_tokens": 40, "action": Action(60, 7, 10)},
        {"prompt": [1, 200], "new_tokens": 9, "action": OFF},
        {
            "prompt": [1, 77, 5],
            "new_tokens": 33,
            "action": Action(4, 1, 2),
            "sampling": SamplingParams(temperature=1.0, seed=4),
        },
        {
            "prompt": [1, 9] * 30,
            "new_tokens": 21,
            "action": Action(16, 4, 4),
            "sampling": SamplingParams(frequency_penalty=1.0),
        },
        {
            "prompt": [8],
            "new_tokens": 40,
            "action": Action(128, 8, 32),
            "sampling": SamplingParams(temperature=0.7, seed=5),
        },
    ]
    with running(load_tiny(), persistence=3, limits=LoopLimits(prefill_chunk=16)) as rig:
        alone = [rig.generate(request(**each)).token_ids for each in requests]
        listeners = [Listener() for _ in requests]
        for listener, each in zip(listeners, requests, strict=True):
            rig.engine.submit(request(**each), listener)
        assert all(isinstance(listener.last(), RequestFinished) for listener in listeners)
        assert max(step.batch_size for _, step in rig.hooks.steps) > 1
        assert rig.engine.load().kv_tokens_reserved == 0
    assert [tuple(listener.tokens) for listener in listeners] == alone


def test_a_prompt_in_chunks_gives_what_it_gives_whole():
    prompt = [3 + i % 280 for i in range(100)]
    with running(load_tiny(), limits=LoopLimits(prefill_chunk=512)) as rig:
        whole = rig.generate(request(prompt, 30, action=Action(16, 4, 4)))
    for chunk in (1, 7, 99):
        with running(load_tiny(), limits=LoopLimits(prefill_chunk=chunk)) as rig:
            parts = rig.generate(request(prompt, 30, action=Action(16, 4, 4)))
            assert parts.token_ids == whole.token_ids
            assert parts.finished.accepted_tokens == whole.finished.accepted_tokens


def test_short_prompts_share_a_step(monkeypatch):
    gate, context = gated(LoopLimits(prefill_chunk=8, prefill_slowdown=1e9))
    with context as rig:
        forwards: list[list[int]] = []
        target = rig.models.target
        forward = target.forward
        rig.engine.submit(request(PROMPT, 3), Listener())
        assert gate.reached.wait(60)
        monkeypatch.setattr(
            target, "forward", lambda batch: forwards.append([len(rows.tokens) for rows in batch]) or forward(batch)
        )
        listeners = [Listener() for _ in range(3)]
        for listener in listeners:
            rig.engine.submit(request([1, 9, 8], 3), listener)
        gate.go.set()
        assert all(isinstance(listener.last(), RequestFinished) for listener in listeners)
    assert [3, 3, 2] in [tokens[-3:] for tokens in forwards]


@pytest.mark.parametrize("poison", [math.inf, math.nan], ids=["inf", "nan"])
def test_a_drafter_that_yields_nan_costs_speculation_only(tmp_path, poison):
    drafter = tiny.write_drafter(tmp_path / "drafter", tiny_models.folders()[0], poison=poison)
    with running(load_tiny(drafter)) as rig:
        completion = rig.generate(request(PROMPT, 30, action=Action(16, 4, 4)))
        assert completion.token_ids == rig.generate(plain(PROMPT, 30)).token_ids
        assert rig.hooks.faults > 0
        assert completion.finished.accepted_tokens == 0
        assert {row.applied for row in rig.sink.transitions} == {OFF}
        assert {row.decision.action for row in rig.sink.transitions} == {Action(16, 4, 4), OFF}


def test_without_a_drafter_every_action_decodes_plainly():
    with running(load_tiny(with_drafter=False)) as rig:
        completion = rig.generate(request(PROMPT, 20, action=Action(16, 4, 4)))
        assert completion.token_ids == rig.generate(plain(PROMPT, 20)).token_ids
        assert (completion.finished.drafted_tokens, completion.finished.steps) == (0, 19)
        assert rig.engine.model.drafter is None


def test_cancel_ends_a_running_request_within_one_step_and_frees_its_memory():
    gate, context = gated()
    with context as rig:
        listener = Listener()
        cancelled = request(PROMPT, 200)
        rig.engine.submit(cancelled, listener)
        assert gate.reached.wait(60)  # in the first step; the first token is out
        rig.engine.cancel(cancelled.request_id)
        gate.go.set()
        finished = listener.last()
        assert isinstance(finished, RequestFinished)
        assert finished.reason is FinishReason.CANCELLED
        assert finished.steps == 1
        assert finished.usage.completion_tokens == len(listener.tokens)
        assert rig.engine.load().kv_tokens_reserved == 0
        assert rig.engine.load().running == 0


def test_cancel_in_the_queue_never_starts_the_request():
    gate, context = gated(LoopLimits(max_running=1))
    with context as rig:
        first, second = Listener(), Listener()
        running_request, waiting = request(PROMPT, 5), request(PROMPT, 5)
        rig.engine.submit(running_request, first)
        assert gate.reached.wait(60)
        rig.engine.submit(waiting, second)
        assert rig.engine.load().waiting == 1
        rig.engine.cancel(waiting.request_id)
        assert rig.engine.load().waiting == 0  # its place is free before the engine's next step
        gate.go.set()
        cancelled = second.last()
        assert isinstance(cancelled, RequestFinished)
        assert (cancelled.reason, cancelled.usage.completion_tokens) == (FinishReason.CANCELLED, 0)
        assert isinstance(first.last(), RequestFinished)
        assert len(first.tokens) == 5


def test_a_full_queue_refuses_with_its_limit():
    gate, context = gated(LoopLimits(max_running=1, queue=QueueLimits(max_requests=1)))
    with context as rig:
        listeners = [Listener() for _ in range(2)]
        rig.engine.submit(request(PROMPT, 3), listeners[0])
        assert gate.reached.wait(60)
        rig.engine.submit(request(PROMPT, 3), listeners[1])
        with pytest.raises(Overloaded, match="1 of 1"):
            rig.engine.submit(request(PROMPT, 3), Listener())
        gate.go.set()
        assert all(isinstance(listener.last(), RequestFinished) for listener in listeners)


def test_a_high_priority_starts_before_what_came_a_little_earlier():
    gate, context = gated(LoopLimits(max_running=1))
    with context as rig:
        first = Listener()
        rig.engine.submit(request(PROMPT, 3), first)
        assert gate.reached.wait(60)
        waiting = [Listener() for _ in Priority]  # low, normal, high
        for listener, priority in zip(waiting, Priority, strict=True):
            rig.engine.submit(dataclasses.replace(request(PROMPT, 3), priority=priority), listener)
        assert rig.engine.load().queue.by_priority == dict.fromkeys(Priority, 1)
        gate.go.set()
        ends = [listener.last() for listener in waiting]
        assert all(isinstance(end, RequestFinished) for end in ends)
        low, normal, high = (end.queue_seconds for end in ends)
        assert high < normal < low


def test_what_waits_too_long_or_past_its_deadline_never_starts():
    gate, context = gated(LoopLimits(max_running=1, queue=QueueLimits(max_seconds=2000.0)))
    with context as rig:
        clock = rig.engine._clock = AheadClock()
        running_one, patient, hurried = Listener(), Listener(), Listener()
        rig.engine.submit(request(PROMPT, 3), running_one)
        assert gate.reached.wait(60)
        rig.engine.submit(request(PROMPT, 3), patient)
        soon = clock.monotonic_ns() + 1000 * 10**9
        rig.engine.submit(dataclasses.replace(request(PROMPT, 3), deadline_ns=soon), hurried)
        clock.ahead_seconds = 2000.0
        gate.go.set()
        late, past = patient.last(), hurried.last()
        assert isinstance(running_one.last(), RequestFinished)
        assert isinstance(late, RequestFailed)
        assert isinstance(late.error, QueueTooSlow)
        assert isinstance(past, RequestFailed)
        assert isinstance(past.error, DeadlineExceeded)
        assert (patient.tokens, hurried.tokens, rig.hooks.failed) == ([], [], 2)
        assert (rig.engine.load().waiting, rig.engine.load().queue.tokens) == (0, 0)


def test_requests_wait_for_kv_memory_in_order():
    """Each needs 7 + 20 + 128 tokens of 320: two fit, the third waits for one to end."""
    with running(load_tiny(), kv_tokens=320) as rig:
        listeners = [Listener() for _ in range(4)]
        for listener in listeners:
            rig.engine.submit(request(PROMPT, 20), listener)
        assert all(isinstance(listener.last(), RequestFinished) for listener in listeners)
        assert max(step.batch_size for _, step in rig.hooks.steps) <= 2
        with pytest.raises(InvalidRequest, match="need 463 KV tokens, and the daemon has 320"):
            rig.engine.submit(request(PROMPT, 200), Listener())


def test_a_fault_in_the_model_ends_its_requests_and_no_others(monkeypatch):
    models = load_tiny()
    with running(models) as rig:
        expected = rig.generate(request(PROMPT, 10)).token_ids
        forward = models.target.forward
        monkeypatch.setattr(models.target, "forward", _raise_once(RuntimeError("secret detail"), forward))
        with pytest.raises(EngineFault) as fault:
            rig.generate(request(PROMPT, 10))
        assert "secret" not in str(fault.value)
        assert rig.generate(request(PROMPT, 10)).token_ids == expected
        assert rig.engine.load().kv_tokens_reserved == 0
        assert rig.hooks.failed == 1


def _raise_once(error: Exception, otherwise):
    raised: list[bool] = []

    def call(*args, **kwargs):
        if not raised:
            raised.append(True)
            raise error
        return otherwise(*args, **kwargs)

    return call


def test_nan_from_the_target_fails_the_request():
    models = load_tiny()
    weights = models.target._model.get_decoder().norm.weight
    with running(models) as rig:
        rig.generate(request(PROMPT, 4))
        with torch.no_grad():
            before = weights.clone()
            weights.fill_(math.nan)
        with pytest.raises(EngineFault):
            rig.generate(request(PROMPT, 4))
        with torch.no_grad():
            weights.copy_(before)
        assert len(rig.generate(request(PROMPT, 4)).token_ids) == 4


def test_unknown_policies_and_oversized_actions_are_refused_at_submit():
    with running(load_tiny()) as rig:
        with pytest.raises(UnknownPolicy):
            rig.engine.submit(request(PROMPT, 4, policy="77"), Listener())
        with pytest.raises(InvalidRequest, match=r"action.total_tokens: 500 .* 128"):
            rig.engine.submit(request(PROMPT, 4, action=Action(500, 8, 32)), Listener())


def test_stop_fails_what_is_left_and_refuses_more():
    gate, context = gated(LoopLimits(max_running=1))
    with context as rig:
        listeners = [Listener(), Listener()]
        for listener in listeners:
            rig.engine.submit(request(PROMPT, 100), listener)
        assert gate.reached.wait(60)
        stopper = threading.Thread(target=rig.engine.stop)
        stopper.start()
        while rig.engine._accepting:
            time.sleep(0.001)
        gate.go.set()
        stopper.join(60)
        for listener in listeners:
            last = listener.last()
            assert isinstance(last, RequestFailed)
            assert isinstance(last.error, EngineUnavailable)
        with pytest.raises(EngineUnavailable):
            rig.engine.submit(request(PROMPT, 4), Listener())


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=4) as running_rig:
        yield running_rig


def test_every_window_lands_in_a_row_with_all_it_measured(rig: Rig):
    rig.sink.requests.clear()
    rig.sink.transitions.clear()
    completion = rig.generate(request(PROMPT, 40))
    rows, (row,) = rig.sink.transitions, rig.sink.requests
    finished = completion.finished
    assert row.completion_tokens == 40
    assert (row.steps, row.drafted_tokens, row.accepted_tokens) == (
        finished.steps,
        finished.drafted_tokens,
        finished.accepted_tokens,
    )
    assert [each.window for each in rows] == list(range(len(rows)))
    assert [each.steps for each in rows[:-1]] == [4] * (len(rows) - 1)
    assert sum(each.draft_ns + each.verify_ns + each.other_ns for each in rows) == row.decode_ns
    assert all(each.observation_schema == rig.schema.fingerprint for each in rows)
    assert all(np.frombuffer(each.observation, "<f4").shape == (rig.schema.width,) for each in rows)
    assert [each.decision.arm for each in rows] == ["champion"] * len(rows)
    assert {each.decision.policy_version for each in rows} == {1}
    assert rows[0].context_length == len(PROMPT)
    assert rows[1].context_length == len(PROMPT) + rows[0].committed_tokens
    assert all(each.batch_size == 1.0 for each in rows)


def test_a_request_may_opt_out_of_the_log(rig: Rig):
    rig.sink.requests.clear()
    rig.generate(dataclasses.replace(request(PROMPT, 8), learning_opt_out=True))
    assert rig.sink.requests == []


def test_a_full_recorder_stops_nothing(rig: Rig):
    rig.sink.full = True
    try:
        assert len(rig.generate(request(PROMPT, 8)).token_ids) == 8
    finally:
        rig.sink.full = False


def test_unused_idle_engine_reports_no_age(rig: Rig):
    load = rig.engine.load()
    assert (load.running, load.waiting, load.seconds_since_progress) == (0, 0, 0.0)


def test_text_events_join_to_the_decoded_tokens(rig: Rig):
    completion = run(rig.engine, request(PROMPT, 40))
    assert completion.text == rig.models.tokenizer.decode(completion.token_ids)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_is_lost_ends_the_engine_since_no_later_step_could_work(monkeypatch):
    with running(load_tiny()) as rig:
        lost = torch.AcceleratorError("CUDA error: device-side assert triggered")
        monkeypatch.setattr(rig.models.target, "forward", _raise_once(lost, lambda *_: None))
        listener = Listener()
        rig.engine.submit(request(PROMPT, 4), listener)
        last = listener.last()
        assert isinstance(last, RequestFailed)
        assert isinstance(last.error, EngineFault)
        rig.engine._thread.join(60)
        assert math.isinf(rig.engine.load().seconds_since_progress)


def test_a_cancel_that_comes_late_does_not_meet_the_next_request_of_its_id():
    with running(load_tiny()) as rig:
        first, second = request(PROMPT, 4), request(PROMPT, 4)
        rig.generate(first)
        listener = Listener()
        with rig.engine._wake:  # before the engine's next look
            rig.engine.cancel(first.request_id)
            rig.engine.submit(dataclasses.replace(second, request_id=first.request_id), listener)
        last = listener.last()
        assert isinstance(last, RequestFinished)
        assert last.reason is FinishReason.LENGTH


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_died_is_not_healthy(monkeypatch):
    """Idle or not: its age is infinite, so that health and watchdog see it."""
    with running(load_tiny()) as rig:
        monkeypatch.setattr(rig.engine, "_round", _raise_once(SystemError("beyond repair"), lambda: None))
        listener = Listener()
        rig.engine.submit(request(PROMPT, 4), listener)
        last = listener.last()
        assert isinstance(last, RequestFailed)
        rig.engine._thread.join(60)
        assert math.isinf(rig.engine.load().seconds_since_progress)
        with pytest.raises(EngineUnavailable):
            rig.engine.submit(request(PROMPT, 4), Listener())
