"""Too little memory in the middle of a step: undone, run in parts, and only what does not fit alone is ended."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import Rig, load_tiny, request, running

from respsd.control.action import OFF, Action
from respsd.engine.events import RequestFailed, RequestFinished, TokensCommitted
from respsd.engine.fitting import CAREFUL_STEPS, FittingSteps
from respsd.engine.local_run import run
from respsd.engine.loop import LoopLimits
from respsd.engine.memory import is_out_of_memory
from respsd.engine.request import SamplingParams
from respsd.errors import EngineFault, OutOfMemory

PROMPTS = [[1, 40, 17, 99], [1, 200], [1, 77, 5, 60, 61, 62]]
TREE = Action(16, 4, 4)
BIG = 231
"""A token of no other prompt and no output here."""
CPU_WORDS = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "8000000000000 bytes. Error code 12 (Cannot allocate memory)"
)
FAULTS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError(CPU_WORDS),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 80 bytes"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


class Outcome:
    """One request's tokens and end."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._end: queue.SimpleQueue[RequestFinished | RequestFailed] = queue.SimpleQueue()

    def __call__(self, event: object) -> None:
        if isinstance(event, TokensCommitted):
            self.tokens += event.token_ids
        elif isinstance(event, (RequestFinished, RequestFailed)):
            self._end.put(event)

    def end(self) -> RequestFinished | RequestFailed:
        return self._end.get(timeout=60)


@contextmanager
def short_of_memory(monkeypatch: pytest.MonkeyPatch, rig: Rig, model: str, fails: Callable[[tuple[Any, ...]], bool]):
    """Passes of a model raise where `fails` says so of what its `forward` is given: the target a list of rows, the
    drafter a list of segments. Yields what they raise, in a list that a test may fill."""
    faults: list[Exception] = [MemoryError()]
    part = rig.models.target if model == "target" else rig.models.drafter
    forward = part.forward

    def limited(*args: Any) -> Any:
        if fails(args):
            forward(*args)  # what was written until then stays written
            raise faults[0]
        return forward(*args)

    with monkeypatch.context() as patch:
        patch.setattr(part, "forward", limited)
        yield faults


def together(rig: Rig, requests: Sequence[Any]) -> list[Outcome]:
    """Submit requests so that the engine sees all of them at once."""
    outcomes = [Outcome() for _ in requests]
    with rig.engine._wake:
        for each, outcome in zip(requests, outcomes, strict=True):
            rig.engine.submit(each, outcome)
    return outcomes


def three(new_tokens: int = 24) -> list[Any]:
    sampling = [SamplingParams(), SamplingParams(temperature=0.8, seed=3), SamplingParams()]
    return [
        request(prompt, new_tokens, action=TREE, sampling=each) for prompt, each in zip(PROMPTS, sampling, strict=True)
    ]


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), limits=LoopLimits(prefill_chunk=64)) as running_rig:
        yield running_rig


@pytest.fixture(autouse=True)
def _careless(rig: Rig) -> None:
    """The test before may have taught the engine to step in small parts."""
    rig.engine._steps._careful_steps = 0


@pytest.fixture(scope="module")
def expected(rig: Rig) -> list[tuple[int, ...]]:
    return [run(rig.engine, each).token_ids for each in three()]


@pytest.mark.parametrize("model", ["target", "drafter"])
def test_a_step_that_fits_in_parts_ends_nobody_and_changes_no_token(monkeypatch, rig, expected, model):
    """The target has room for 20 rows, of which a tree takes 16; the drafter for one sequence at a time."""
    failed: list[int] = []

    def fails(args: tuple[Any, ...]) -> bool:
        does = sum(len(rows.tokens) for rows in args[0]) > 20 if model == "target" else len(args[0]) > 1
        failed.extend([len(args[0])] * does)
        return does

    with short_of_memory(monkeypatch, rig, model, fails):
        outcomes = together(rig, three())
        assert all(isinstance(outcome.end(), RequestFinished) for outcome in outcomes)
    assert failed
    assert [tuple(outcome.tokens) for outcome in outcomes] == expected
    assert rig.engine.load().kv_tokens_reserved == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_prompt_that_does_not_fit_ends_its_request_alone(monkeypatch, rig, expected, fault):
    """Every pass with a row of it fails, whoever else is in the step; the others' tokens are what they are alone."""
    big = request([BIG] * 50, 8)
    with short_of_memory(
        monkeypatch, rig, "target", lambda args: any(BIG in rows.tokens for rows in args[0])
    ) as faults:
        faults[0] = fault
        outcomes = together(rig, [*three(), big])
        ends = [outcome.end() for outcome in outcomes]
    assert [type(end) for end in ends] == [RequestFinished] * 3 + [RequestFailed]
    assert isinstance(ends[3].error, OutOfMemory)
    assert ends[3].error.retry_after_seconds == 5.0
    assert "8000000000000" not in str(ends[3].error)
    assert [tuple(outcome.tokens) for outcome in outcomes[:3]] == expected
    assert outcomes[3].tokens == []
    assert rig.engine.load().kv_tokens_reserved == 0
    assert run(rig.engine, big).token_ids


def test_a_prompt_that_fits_in_parts_goes_on_in_them(monkeypatch, rig, expected):
    big = request([3 + i % 200 for i in range(50)], 8)
    whole = run(rig.engine, big).token_ids
    with short_of_memory(monkeypatch, rig, "target", lambda args: any(len(rows.tokens) > 20 for rows in args[0])):
        outcomes = together(rig, [*three(), big])
        assert [type(outcome.end()) for outcome in outcomes] == [RequestFinished] * 4
    assert [tuple(outcome.tokens) for outcome in outcomes] == [*expected, whole]
    assert rig.engine.load().kv_tokens_reserved == 0


@pytest.mark.parametrize("model", ["target", "drafter"])
def test_a_tree_that_does_not_fit_ends_its_request_alone(monkeypatch, rig, expected, model):
    """The one with the largest tree fails in every pass that holds more rows of one sequence than the others have."""
    big = request([1, 9, 8], 30, action=Action(60, 5, 20))

    def fails(args: tuple[Any, ...]) -> bool:
        if model == "target":
            return any(len(rows.tokens) > 16 for rows in args[0])
        return any(segment.rows.stop - segment.rows.start > 8 for segment in args[0])

    with short_of_memory(monkeypatch, rig, model, fails):
        outcomes = together(rig, [big, *three()])
        ends = [outcome.end() for outcome in outcomes]
    assert [type(end) for end in ends] == [RequestFailed] + [RequestFinished] * 3
    assert isinstance(ends[0].error, OutOfMemory)
    assert len(outcomes[0].tokens) == 1  # the prompt's own, which came before the tree
    assert [tuple(outcome.tokens) for outcome in outcomes[1:]] == expected
    assert rig.engine.load().kv_tokens_reserved == 0


def test_a_failure_in_passing_is_undone_and_costs_no_token(monkeypatch, rig, expected):
    """The drafter's catch-up is half done when memory runs out in the target; the step is run again all the same."""
    passes = iter(range(1, 10**6))
    with short_of_memory(monkeypatch, rig, "target", lambda args: len(args[0]) > 1 and next(passes) % 3 == 0):
        outcomes = together(rig, three())
        assert all(isinstance(outcome.end(), RequestFinished) for outcome in outcomes)
    assert [tuple(outcome.tokens) for outcome in outcomes] == expected


def test_too_little_memory_for_one_sequences_own_part_ends_it_alone(monkeypatch, rig, expected):
    """Drawing its tokens fails, once the batch's forward is over: the others have theirs from the same forward."""
    victim = request([1, 5, 9], 24, sampling=SamplingParams(temperature=1.0, seed=99), action=OFF)
    from respsd.engine.sampling import Sampler

    sample = Sampler.sample

    def limited(self: Sampler, logits: Any, position: int, path: Sequence[int] = ()) -> int:
        if self._params.seed == 99 and position > 6:
            raise MemoryError
        return sample(self, logits, position, path)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "sample", limited)
        outcomes = together(rig, [victim, *three()])
        ends = [outcome.end() for outcome in outcomes]
    assert isinstance(ends[0], RequestFailed)
    assert isinstance(ends[0].error, OutOfMemory)
    assert len(outcomes[0].tokens) == 4
    assert [tuple(outcome.tokens) for outcome in outcomes[1:]] == expected


def test_too_little_memory_to_begin_a_request_leaves_no_trace(monkeypatch, rig):
    def limited(*_args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("respsd.engine.admission.StopScanner", limited)
        with pytest.raises(OutOfMemory):
            run(rig.engine, request([1, 2], 4))
    assert rig.engine.load().kv_tokens_reserved == 0
    assert run(rig.engine, request([1, 2], 4)).token_ids


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(1 << 55, dtype=torch.int8),
        lambda: np.empty(1 << 55, dtype=np.int8),
        lambda: bytearray(1 << 55),
    ],
    ids=["torch", "numpy", "python"],
)
def test_what_this_machine_says_when_it_has_too_little_is_understood(allocate):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    assert is_out_of_memory(caught.value)


def test_another_fault_is_no_want_of_memory(monkeypatch, rig):
    with short_of_memory(monkeypatch, rig, "target", lambda _args: True) as faults:
        faults[0] = RuntimeError("CUDA error: device-side assert triggered")
        with pytest.raises(EngineFault):
            run(rig.engine, request([1, 2], 4))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


class Memory:
    """Steps of whole numbers that fit where their sum is at most `room`."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried: list[list[int]] = []
        self.ended: list[int] = []
        self.steps = FittingSteps[int](self._step, self._half, self.ended.append)

    @staticmethod
    def _half(member: int) -> int | None:
        return member // 2 if member in (8, 16) else None

    def _step(self, members: Sequence[int]) -> bool:
        self.tried.append(list(members))
        return sum(members) <= self.room


def test_parts_are_halved_until_they_fit_and_the_next_steps_keep_to_them():
    memory = Memory(room=4)
    memory.steps.run([1, 2, 3, 1, 9])
    assert memory.tried == [[1, 2, 3, 1, 9], [1, 2, 3], [1, 2], [3], [1, 9], [1], [9]]
    assert memory.ended == [9]
    memory.tried.clear()
    memory.room = 100
    for _ in range(CAREFUL_STEPS):
        memory.steps.run([1, 2, 3, 1])
    assert memory.tried == [[1], [2], [3], [1]] * CAREFUL_STEPS
    memory.tried.clear()
    memory.steps.run([1, 2, 3, 1])
    assert memory.tried == [[1, 2, 3, 1]]


def test_what_does_not_fit_alone_is_halved_where_it_can_be():
    memory = Memory(room=4)
    memory.steps.run([16, 1])
    assert memory.tried == [[16, 1], [16], [8], [4], [1]]
    assert memory.ended == []


def test_a_step_of_nobody_is_none():
    memory = Memory(room=1)
    memory.steps.run([])
    assert memory.tried == []
