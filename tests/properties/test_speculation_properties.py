"""Any mix of a request's fields gives under speculation what plain decoding gives: tokens, text, end and log-probs."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import tiny
from support.engines import Rig, load_tiny, running

from respsd.control.action import OFF, Action
from respsd.engine.local_run import Completion
from respsd.engine.request import GenerationRequest, SamplingParams, Speculation, StoppingParams

ACTIONS = [Action(2, 0, 1), Action(8, 3, 3), Action(16, 4, 4), Action(60, 7, 10)]
BUDGET = 24

sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0, 1.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    top_k=st.sampled_from([0, 3, 40]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 0.8, 1.3, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.8, -0.6, 2.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -1.0]),
    logit_bias=st.dictionaries(
        st.one_of(st.just(tiny.EOS), st.integers(0, tiny.VOCAB - 1)),
        st.sampled_from([-100.0, -1.0, 2.0, 8.0]),
        max_size=4,
    ),
    seed=st.integers(0, 2**63 - 1),
)
prompts = st.lists(st.integers(3, tiny.VOCAB - 1), min_size=1, max_size=12).map(lambda ids: (1, *ids))


@st.composite
def ends(draw: st.DrawFn, free: Completion) -> StoppingParams:
    """Ends that this output really meets, or nearly: its own tokens and pieces of its own text."""
    tokens, text = free.token_ids, free.text
    stop_tokens = draw(st.lists(st.sampled_from(tokens), max_size=2))
    strings = []
    if text:
        start = draw(st.integers(0, len(text) - 1))
        strings = [text[start : start + draw(st.integers(1, 6))]] if draw(st.booleans()) else []
    return StoppingParams(
        max_new_tokens=draw(st.integers(1, BUDGET)),
        min_new_tokens=0,
        stop_token_ids=tuple(stop_tokens),
        stop_strings=tuple(strings),
        ignore_eos=draw(st.booleans()),
        include_stop=draw(st.booleans()),
    )


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=2) as running_rig:
        yield running_rig


def described(completion: Completion) -> tuple[object, ...]:
    finished = completion.finished
    return (
        completion.token_ids,
        completion.text,
        finished.reason,
        finished.matched_stop,
        finished.usage,
        [each.token_id for each in completion.log_probs],
        [each.token_id for each in completion.prompt_log_probs],
    )


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), prompt=prompts, sampling=sampling)
def test_any_mix_of_fields_is_plain_decoding_under_any_action(rig: Rig, data, prompt, sampling):
    request = GenerationRequest(
        request_id="mix",
        prompt_ids=prompt,
        stopping=StoppingParams(BUDGET, ignore_eos=True),
        sampling=sampling,
        speculation=Speculation(action=OFF),
    )
    stopping = data.draw(ends(rig.generate(request)))
    least = data.draw(st.integers(0, stopping.max_new_tokens))
    request = dataclasses.replace(
        request,
        stopping=dataclasses.replace(stopping, min_new_tokens=least),
        log_probs=data.draw(st.sampled_from([None, 0, 3])),
        prompt_log_probs=data.draw(st.sampled_from([None, None, 2])),
        echo=data.draw(st.sampled_from([None, ""])),
        skip_special_tokens=data.draw(st.booleans()),
    )
    plain = rig.generate(request)
    for action in ACTIONS:
        drafted = rig.generate(dataclasses.replace(request, speculation=Speculation(action=action)))
        assert described(drafted) == described(plain)
        for ours, theirs in zip(drafted.log_probs, plain.log_probs, strict=True):
            assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
            assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-4)
    if plain.finished.usage.completion_tokens < least:
        raise AssertionError("the output ended before min_new_tokens")


def test_the_mixes_are_drafted_and_accepted(rig: Rig):
    """Else the property would prove little: under penalties and sampling too some drafts are right."""
    for params in (
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.4, presence_penalty=-1.0, seed=3),
    ):
        request = GenerationRequest(
            "drafted", (1, 40, 17, 99), StoppingParams(60, ignore_eos=True), params, Speculation(action=ACTIONS[-1])
        )
        assert rig.generate(request).finished.accepted_tokens > 0
