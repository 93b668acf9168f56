"""Speculation changes speed, never output: greedy and seeded sampling, every action, every mix of actions.

`RESPSD_TEST_WHOLE_GRID=1 pytest tests/engine/test_lossless.py` has each of fifty prompts meet every action.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from support import tiny
from support.engines import Rig, load_tiny, plain, request, running, static_router
from support.models import folders
from transformers import AutoModelForCausalLM

from respsd.control.action import OFF, Action, paper_table
from respsd.control.controller import Decision, Vector
from respsd.control.router import PolicyRouter
from respsd.control.static import StaticController
from respsd.engine.request import SamplingParams

PROMPTS = [[1, 40, 17, 99, 254, 3, 60], [1, 200], [1, 77, 5, 31, 31, 31, 8, 9, 10]]
SMALL = [Action(2, 0, 1), Action(4, 1, 2), Action(6, 2, 1), Action(8, 3, 3), Action(16, 4, 4), Action(12, 0, 11)]
WHOLE_GRID = bool(os.environ.get("RESPSD_TEST_WHOLE_GRID"))
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=1234)


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=3) as running_rig:
        yield running_rig


@pytest.fixture(scope="module")
def greedy(rig: Rig) -> list[tuple[int, ...]]:
    return [rig.generate(plain(prompt, 40)).token_ids for prompt in PROMPTS]


def test_plain_decoding_equals_transformers_generate(greedy):
    model = AutoModelForCausalLM.from_pretrained(folders()[0], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    for prompt, ours in zip(PROMPTS, greedy, strict=True):
        theirs = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert ours == tuple(theirs[0, len(prompt) :].tolist())


@pytest.mark.parametrize("action", SMALL, ids=str)
def test_greedy_is_plain_decoding_under_small_actions(rig, greedy, action):
    for prompt, expected in zip(PROMPTS, greedy, strict=True):
        assert rig.generate(request(prompt, 40, action=action)).token_ids == expected


@pytest.mark.slow
@pytest.mark.timeout(7200 if WHOLE_GRID else 600)
def test_greedy_is_plain_decoding_under_every_action_of_the_paper(rig):
    """The whole grid over fifty prompts: each prompt meets three or four of the 177 actions, or all of them."""
    draw = random.Random(8)
    prompts = [[1, *(draw.randrange(3, tiny.VOCAB) for _ in range(draw.randrange(1, 12)))] for _ in range(50)]
    plain_outputs = [rig.generate(plain(prompt, 24)).token_ids for prompt in prompts]
    for number, action in enumerate(paper_table()):
        for chosen in range(50) if WHOLE_GRID else [number % 50]:
            tokens = rig.generate(request(prompts[chosen], 24, action=action)).token_ids
            assert tokens == plain_outputs[chosen], (action, prompts[chosen])


def test_drafts_are_really_accepted(rig):
    """Else the tests here would prove little."""
    completion = rig.generate(request(PROMPTS[0], 40, action=Action(60, 7, 10)))
    assert completion.tau > 1.5
    assert completion.finished.accepted_tokens == 39 - completion.finished.steps


@pytest.fixture(scope="module")
def sampled(rig: Rig) -> list[tuple[int, ...]]:
    return [rig.generate(plain(prompt, 40, sampling=SAMPLED)).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("action", [*SMALL, Action(60, 7, 10), Action(128, 8, 32)], ids=str)
def test_a_seed_gives_the_same_sample_whatever_the_action(rig, sampled, action):
    for prompt, expected in zip(PROMPTS, sampled, strict=True):
        assert rig.generate(request(prompt, 40, action=action, sampling=SAMPLED)).token_ids == expected


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(frequency_penalty=0.7, presence_penalty=0.4),
        SamplingParams(logit_bias={17: 4.0, 40: -100.0}),
        SamplingParams(temperature=1.1, top_k=20, min_p=0.02, frequency_penalty=0.5, seed=7),
    ],
    ids=["repetition", "occurrence", "bias", "all"],
)
def test_processors_act_on_each_nodes_own_path(rig, sampling):
    for prompt in PROMPTS:
        off = rig.generate(plain(prompt, 28, sampling=sampling))
        on = rig.generate(request(prompt, 28, action=Action(60, 7, 10), sampling=sampling))
        assert on.token_ids == off.token_ids


def test_penalties_change_the_output(rig, greedy):
    """Never silently ignored (vLLM 18902 and its like)."""
    less = rig.generate(request(PROMPTS[0], 40, sampling=SamplingParams(frequency_penalty=2.0)))
    more = rig.generate(request(PROMPTS[0], 40, sampling=SamplingParams(frequency_penalty=-2.0)))
    assert len({less.token_ids, more.token_ids, greedy[0]}) == 3


def test_min_new_tokens_bars_eos_under_speculation_too(rig):
    bias = SamplingParams(logit_bias={2: 1000.0})
    for action in (OFF, Action(16, 4, 4)):
        completion = rig.generate(
            request(PROMPTS[0], 40, action=action, sampling=bias, ignore_eos=False, min_new_tokens=9)
        )
        assert len(completion.token_ids) == 10
        assert completion.token_ids[-1] == 2
        assert 2 not in completion.token_ids[:-1]


class _Restless:
    """Another action at every window."""

    version = 9

    def __init__(self) -> None:
        self._random = random.Random(3)

    def choose(self, observation: Vector, uniform: float) -> Decision:
        action = self._random.choice([OFF, *SMALL, Action(60, 7, 10), Action(128, 8, 32)])
        return Decision(action, 0.0, "champion", policy_version=self.version)


def test_any_sequence_of_actions_gives_the_same_tokens():
    router = static_router(OFF)
    router.swap("champion", _Restless())
    with running(load_tiny(), router, persistence=1) as rig:
        for prompt in PROMPTS:
            for sampling in (SamplingParams(), SAMPLED):
                off = rig.generate(plain(prompt, 60, sampling=sampling))
                assert rig.generate(request(prompt, 60, sampling=sampling)).token_ids == off.token_ids


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "seeded"])
def test_a_swap_in_mid_stream_changes_no_token_and_shows_in_the_versions(greedy, sampled, sampling):
    router = static_router(Action(16, 4, 4), version=1)
    with running(load_tiny(), router, persistence=1) as rig:
        swapped = _SwapAfter(router, windows=3)
        router.swap("champion", swapped)
        completion = rig.generate(request(PROMPTS[0], 40, sampling=sampling))
    assert completion.token_ids == (greedy[0] if sampling.is_greedy else sampled[0])
    assert (completion.finished.policy_version_first, completion.finished.policy_version_last) == (1, 2)


class _SwapAfter:
    """Version 1, which puts version 2 in its place after some windows."""

    version = 1

    def __init__(self, router: PolicyRouter, windows: int) -> None:
        self._router = router
        self._left = windows

    def choose(self, observation: Vector, uniform: float) -> Decision:
        self._left -= 1
        if self._left == 0:
            self._router.swap("champion", StaticController(Action(60, 7, 10), 2, "champion"))
        return Decision(Action(4, 1, 2), 0.0, "champion", policy_version=1)


@pytest.mark.parametrize("pending_limit", [50, 1000])
def test_long_plain_stretches_then_trees_still_agree(monkeypatch, pending_limit):
    """The drafter catches up with what it did not see while the sequence decoded plainly, in parts or at once."""
    monkeypatch.setattr("respsd.engine.step._PENDING_LIMIT", pending_limit)
    router = static_router(OFF)
    router.swap("champion", _OffThenOn(windows=70))
    with running(load_tiny(), router, persistence=4) as other:
        long = other.generate(request([1, 9], 250 - 2))
        off = other.generate(plain([1, 9], 250 - 2))
    assert long.token_ids == off.token_ids
    assert long.finished.accepted_tokens > 0


class _OffThenOn:
    version = 1

    def __init__(self, windows: int) -> None:
        self._left = windows

    def choose(self, observation: Vector, uniform: float) -> Decision:
        self._left -= 1
        return Decision(OFF if self._left > 15 else Action(16, 4, 4), 0.0, "champion", policy_version=1)
