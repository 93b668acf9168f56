"""Log-probs are the target's own, whatever draft tree scored them: as transformers computes them on the same tokens."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support import tiny
from support.engines import Rig, load_tiny, request, running
from support.models import folders
from transformers import AutoModelForCausalLM

from respsd.control.action import OFF, Action
from respsd.engine.assembly import load_models
from respsd.engine.events import TokenLogProb
from respsd.engine.local_run import Completion
from respsd.engine.loop import LoopLimits
from respsd.engine.request import GenerationRequest, SamplingParams
from respsd.engine.scoring import SCORED_ROWS, score
from respsd.errors import EngineFault

PROMPT = [1, 40, 17, 99, 254, 3, 60]
ACTIONS = [OFF, Action(4, 1, 2), Action(16, 4, 4), Action(60, 7, 10)]
SAMPLED = SamplingParams(temperature=0.9, top_p=0.8, seed=5, repetition_penalty=1.4, logit_bias={40: 5.0})


def scored(
    prompt: list[int], *, top: int | None = 4, prompt_top: int | None = None, **options: object
) -> GenerationRequest:
    asked = request(prompt, **options)  # type: ignore[arg-type]
    return dataclasses.replace(asked, log_probs=top, prompt_log_probs=prompt_top)


@pytest.fixture(scope="module")
def rig():
    with running(load_tiny(), persistence=3) as running_rig:
        yield running_rig


@pytest.fixture(scope="module")
def transformers_model():
    return AutoModelForCausalLM.from_pretrained(folders()[0], dtype=torch.float32)


def independent(model, tokens: list[int]) -> torch.Tensor:
    """Log-probs after each token, [tokens, vocab]."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)


def check(scores: tuple[TokenLogProb, ...], rows: torch.Tensor, tokens: list[int], top: int) -> None:
    assert [each.token_id for each in scores] == tokens
    for each, row in zip(scores, rows, strict=True):
        assert each.log_prob == pytest.approx(float(row[each.token_id]), abs=1e-4)
        assert len(each.top) == top
        assert [value for _, value in each.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
        for token, value in each.top:
            assert value == pytest.approx(float(row[token]), abs=1e-4)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_output_log_probs_are_what_transformers_gives_for_the_same_tokens(rig, transformers_model, action, sampling):
    """Before temperature, penalties and bias, at every committed token, also the first and the bonus ones."""
    completion = rig.generate(scored(PROMPT, new_tokens=30, action=action, sampling=sampling))
    output = list(completion.token_ids)
    rows = independent(transformers_model, PROMPT + output)[len(PROMPT) - 1 : -1]
    check(completion.log_probs, rows, output, 4)


@pytest.mark.parametrize("length", [1, 2, 40, SCORED_ROWS + 30])
@pytest.mark.parametrize("chunk", [512, 16])
def test_prompt_log_probs_are_what_transformers_gives(rig, transformers_model, length, chunk):
    prompt = [3 + i * 7 % 280 for i in range(length)]
    with running(load_tiny(), limits=LoopLimits(prefill_chunk=chunk)) as chunked:
        completion = chunked.generate(scored(prompt, new_tokens=5, top=None, prompt_top=3, action=Action(16, 4, 4)))
    first, *others = completion.prompt_log_probs
    assert first == TokenLogProb(prompt[0], None)
    check(tuple(others), independent(transformers_model, prompt)[:-1], prompt[1:], 3)
    assert completion.log_probs == ()
    assert completion.token_ids == rig.generate(request(prompt, 5)).token_ids


def exact_models():
    target, drafter = folders()
    return load_models(target, drafter, dtype=torch.float32, device=torch.device("cpu"), exact=True)


def test_where_decoding_is_exact_log_probs_are_bit_for_bit_those_of_plain_decoding():
    with running(exact_models(), persistence=2) as rig:
        plain = rig.generate(scored(PROMPT, new_tokens=40, action=OFF, sampling=SAMPLED, prompt_top=2))
        for action in ACTIONS[1:]:
            drafted = rig.generate(scored(PROMPT, new_tokens=40, action=action, sampling=SAMPLED, prompt_top=2))
            assert drafted.finished.accepted_tokens > 0
            assert drafted.log_probs == plain.log_probs
            assert drafted.prompt_log_probs == plain.prompt_log_probs


def test_log_probs_end_where_the_output_ends(rig: Rig):
    """What a step accepted behind a stop is in no log-prob either."""
    free = rig.generate(request(PROMPT, 30, action=OFF)).token_ids
    stop = next(i for i in range(6, 30) if free[i] not in free[:i])
    for action in ACTIONS:
        completion = rig.generate(scored(PROMPT, action=action, stop_token_ids=(free[stop],)))
        assert tuple(each.token_id for each in completion.log_probs) == completion.token_ids == free[: stop + 1]


def test_asking_changes_no_token_and_unasked_there_are_none(rig: Rig):
    for sampling in (SamplingParams(), SAMPLED):
        unasked = rig.generate(request(PROMPT, 30, sampling=sampling))
        asked = rig.generate(scored(PROMPT, new_tokens=30, sampling=sampling, prompt_top=0))
        assert asked.token_ids == unasked.token_ids
        assert unasked.log_probs == unasked.prompt_log_probs == ()
        assert all(each.top == () for each in asked.prompt_log_probs)


def test_a_request_without_log_probs_scores_nothing(rig: Rig, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("scored without being asked")

    monkeypatch.setattr("respsd.engine.step.score", refuse)
    assert isinstance(rig.generate(request(PROMPT, 30, action=Action(16, 4, 4))), Completion)


def test_scores_by_hand():
    rows = torch.tensor([[0.0, math.log(3.0), -math.inf, 0.0], [1.0, 1.0, 1.0, 1.0]])
    first, second = score(rows, [1, 3], 3)
    assert first.log_prob == pytest.approx(math.log(3 / 5))
    assert [token for token, _ in first.top] == [1, 0, 3]
    assert [value for _, value in first.top] == pytest.approx([math.log(3 / 5), math.log(1 / 5), math.log(1 / 5)])
    assert second.log_prob == pytest.approx(math.log(1 / 4))
    assert [token for token, _ in second.top] == [0, 1, 2]  # of equals the lower ids
    assert score(rows, [2, 0], 0)[0] == TokenLogProb(2, -math.inf)
    assert score(rows[:0], [], 3) == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_are_scored_in_float32(dtype):
    row = torch.randn(1, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    expected = torch.log_softmax(row.float(), -1)[0]
    (scores,) = score(row, [7], 50)
    assert scores.log_prob == float(expected[7])
    assert dict(scores.top) == {token: float(value) for token, value in enumerate(expected)}


def test_top_tokens_are_at_most_the_vocabulary(rig: Rig):
    completion = rig.generate(scored(PROMPT, new_tokens=2, top=10_000))
    assert len(completion.log_probs[0].top) == tiny.VOCAB


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_no_distribution_is_a_fault(bad):
    row = torch.zeros(1, 5)
    row[0, 2] = bad
    with pytest.raises(EngineFault):
        score(row, [1], 1)
