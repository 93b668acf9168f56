"""Several samples of one prompt: each what its seed gives alone, all from one prefill."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from support.engines import Rig, load_tiny, request, running, static_router
from support.listening import Gate, Listener

from respsd.control.action import OFF, Action
from respsd.engine.events import FinishReason, RequestFinished
from respsd.engine.loop import LoopLimits
from respsd.engine.request import GenerationRequest, SamplingParams
from respsd.engine.samples import sample_seed, samples_of

PROMPT = [1, 40, 17, 99, 254, 3, 60]
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=42)


def asked(samples: int, new_tokens: int = 30, **options: object) -> GenerationRequest:
    return dataclasses.replace(
        request(PROMPT, new_tokens, sampling=SAMPLED, **options),  # type: ignore[arg-type]
        samples=samples,
    )


def submit(rig: Rig, whole: GenerationRequest) -> list[Listener]:
    """Submit all samples so that the engine sees them at once."""
    listeners = [Listener() for _ in range(whole.samples)]
    with rig.engine._wake:
        for sample, listener in zip(samples_of(whole), listeners, strict=True):
            rig.engine.submit(sample, listener)
    return listeners


def outputs(listeners: list[Listener]) -> list[tuple[int, ...]]:
    assert all(isinstance(listener.last(), RequestFinished) for listener in listeners)
    return [tuple(listener.tokens) for listener in listeners]


@pytest.fixture
def forwards(monkeypatch):
    """Tokens of each sequence in each forward of a rig's target, once `watch` is called."""

    def watch(rig: Rig) -> list[list[int]]:
        seen: list[list[int]] = []
        target, forward = rig.models.target, rig.models.target.forward
        monkeypatch.setattr(
            target, "forward", lambda batch: seen.append([len(rows.tokens) for rows in batch]) or forward(batch)
        )
        return seen

    return watch


def test_derived_seeds_by_hand():
    assert sample_seed(42, 0) == 42
    digest = hashlib.blake2b((42).to_bytes(8, "big") + (3).to_bytes(8, "big"), digest_size=8).digest()
    bits = "".join(f"{byte:08b}" for byte in digest)
    assert sample_seed(42, 3) == int(bits[:53], 2)
    seeds = {sample_seed(seed, sample) for seed in range(50) for sample in range(16)}
    assert len(seeds) == 50 * 16  # neighbouring seeds share no sample
    assert max(seeds) < 2**53
    assert sample_seed(2**63 - 1, 1) < 2**53


def test_a_request_becomes_its_samples():
    single = request(PROMPT)
    assert samples_of(single) == (single,)
    whole = dataclasses.replace(asked(3), prompt_log_probs=2, log_probs=1)
    first, second, third = samples_of(whole)
    assert first == whole
    assert [each.sample for each in (first, second, third)] == [0, 1, 2]
    assert {each.request_id for each in (first, second, third)} == {whole.request_id}
    assert [each.sampling.seed for each in (first, second, third)] == [sample_seed(42, i) for i in range(3)]
    assert (second.prompt_log_probs, second.log_probs) == (None, 1)


@pytest.mark.parametrize("action", [OFF, Action(4, 1, 2), Action(60, 7, 10)], ids=str)
def test_each_sample_is_what_its_seed_gives_alone(action):
    with running(load_tiny(), persistence=3) as rig:
        alone = [
            rig.generate(request(PROMPT, 30, sampling=dataclasses.replace(SAMPLED, seed=sample_seed(42, i)))).token_ids
            for i in range(5)
        ]
        together = outputs(submit(rig, asked(5, action=action)))
        assert rig.engine.load().kv_tokens_reserved == 0
    assert together == alone
    assert len(set(alone)) == 5


@pytest.mark.parametrize("chunk", [512, 3])
def test_the_prompt_is_computed_once(forwards, chunk):
    with running(load_tiny(), limits=LoopLimits(prefill_chunk=chunk)) as rig:
        seen = forwards(rig)
        together = outputs(submit(rig, asked(6, new_tokens=8, action=OFF)))
    # plain steps take a token of each sequence; the rest is the prompt
    assert sum(sum(tokens) for tokens in seen) == len(PROMPT) + 6 * 7
    assert len(together) == 6


def test_samples_that_come_late_start_from_the_first_ones_prompt_while_it_runs(forwards):
    gate = Gate()
    router = static_router(Action(8, 3, 3))
    router.swap("champion", gate)
    with running(load_tiny(), router, persistence=1) as rig:
        first, *others = samples_of(asked(3))
        seen = forwards(rig)
        listeners = [Listener() for _ in range(3)]
        rig.engine.submit(first, listeners[0])
        assert gate.reached.wait(60)
        for sample, listener in zip(others, listeners[1:], strict=True):
            rig.engine.submit(sample, listener)
        gate.go.set()
        late = outputs(listeners)
        assert [tokens for tokens in seen if len(PROMPT) in tokens] == [[len(PROMPT)]]
    with running(load_tiny()) as rig:
        assert outputs(submit(rig, asked(3))) == late


def test_samples_whose_first_is_gone_prefill_the_prompt_themselves():
    """One place only: each sample starts when the one before has ended and its memory is free."""
    with running(load_tiny(), limits=LoopLimits(max_running=1)) as rig:
        one_by_one = outputs(submit(rig, asked(3)))
    with running(load_tiny()) as rig:
        assert outputs(submit(rig, asked(3))) == one_by_one


def test_samples_of_one_token_share_the_prefill_too(forwards):
    with running(load_tiny()) as rig:
        seen = forwards(rig)
        together = outputs(submit(rig, asked(4, new_tokens=1)))
    assert sum(sum(tokens) for tokens in seen) == len(PROMPT)
    assert [len(tokens) for tokens in together] == [1] * 4


def test_one_cancel_ends_all_samples():
    gate = Gate()
    router = static_router(Action(8, 3, 3))
    router.swap("champion", gate)
    with running(load_tiny(), router, persistence=1) as rig:
        whole = asked(3, new_tokens=200)
        listeners = submit(rig, whole)
        assert gate.reached.wait(60)
        rig.engine.cancel(whole.request_id)
        gate.go.set()
        for listener in listeners:
            finished = listener.last()
            assert isinstance(finished, RequestFinished)
            assert finished.reason is FinishReason.CANCELLED
        assert rig.engine.load().kv_tokens_reserved == 0


def test_each_sample_leaves_its_own_rows():
    with running(load_tiny()) as rig:
        whole = asked(3)
        outputs(submit(rig, whole))
        rows = rig.sink.requests
    assert sorted(row.seed for row in rows) == sorted(sample_seed(42, i) for i in range(3))
    assert {row.request_id for row in rows} == {whole.request_id}
