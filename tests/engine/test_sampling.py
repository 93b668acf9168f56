"""The sampler: processors by hand, draws that follow the processed distribution, one token whatever the tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from respsd.engine.request import SamplingParams, StoppingParams
from respsd.engine.sampling import Sampler, argmax_rows
from respsd.errors import EngineFault, InvalidRequest

EOS, STOP = 1, 2
ROW = torch.tensor([1.0, 3.0, -1.0, 2.0, 0.5])


def sampler(*, prompt=(), vocab=5, stopping=None, eos=(EOS,), **params) -> Sampler:
    return Sampler(SamplingParams(**params), stopping or StoppingParams(100), prompt, vocab, eos)


def softmax(logits) -> list[float]:
    return torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist()


def test_greedy_takes_the_best_and_the_lower_id_on_ties():
    assert sampler().sample(ROW, 0) == 1
    assert sampler().sample(torch.tensor([0.0, 7.0, 7.0, 7.0, 1.0]), 0) == 1
    assert sampler(logit_bias={4: 0.0}).sample(torch.tensor([0.0, 7.0, 7.0, 7.0, 1.0]), 0) == 1


def test_argmax_rows_is_greedy_for_many_nodes():
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows[3, 7] = torch.nan
    best = argmax_rows(rows).tolist()
    assert best[3] == -1
    assert [token for i, token in enumerate(best) if i != 3] == [
        sampler(vocab=50).sample(row, 0) for i, row in enumerate(rows) if i != 3
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_rows_of_any_dtype_are_read_exactly(dtype):
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    for row in rows:
        assert sampler(temperature=1.0).distribution(row) == pytest.approx(softmax(row.double().tolist()), abs=1e-6)


def test_input_row_is_left_as_it_was():
    row = ROW.clone()
    sampler(temperature=0.5, top_k=2, repetition_penalty=2.0, prompt=(1,), logit_bias={0: 1.0}).sample(row, 0, [3])
    assert torch.equal(row, ROW)


def test_temperature_divides_the_logits():
    assert sampler(temperature=2.0).distribution(ROW) == pytest.approx(softmax([0.5, 1.5, -0.5, 1.0, 0.25]), abs=1e-6)


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-300])
def test_tiny_temperature_is_greedy_and_does_not_overflow(temperature):
    row = torch.tensor([1e4, -3e38, 1.0001e4, 0.0, -torch.inf])
    with np.errstate(all="raise", under="ignore"):
        drawn = {sampler(temperature=temperature, seed=seed).sample(row, 5) for seed in range(20)}
    assert drawn == {2}


def test_logit_bias_is_added():
    assert sampler(temperature=1.0, logit_bias={0: 2.5, 3: -10.0}).distribution(ROW) == pytest.approx(
        softmax([3.5, 3.0, -1.0, -8.0, 0.5]), abs=1e-6
    )
    assert sampler(logit_bias={2: 100.0}).sample(ROW, 0) == 2
    with pytest.raises(InvalidRequest, match=r"logit_bias: 5 .* 0 to 4"):
        sampler(logit_bias={5: 1.0})


def test_repetition_penalty_acts_on_prompt_output_and_path():
    penalised = sampler(temperature=1.0, repetition_penalty=2.0, prompt=(1,))
    penalised.commit([2])
    assert penalised.distribution(ROW) == pytest.approx(softmax([1.0, 1.5, -2.0, 2.0, 0.5]), abs=1e-6)
    assert penalised.distribution(ROW, [3, 3]) == pytest.approx(softmax([1.0, 1.5, -2.0, 1.0, 0.5]), abs=1e-6)
    assert penalised.distribution(ROW) == pytest.approx(softmax([1.0, 1.5, -2.0, 2.0, 0.5]), abs=1e-6)


def test_presence_and_frequency_act_on_the_output_only():
    penalised = sampler(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25, prompt=(0, 0, 4))
    penalised.commit([1, 3])
    penalised.commit([1])
    # 1: 3 - 0.5 - 2 * 0.25; 3: 2 - 0.5 - 0.25
    assert penalised.distribution(ROW) == pytest.approx(softmax([1.0, 2.0, -1.0, 1.25, 0.5]), abs=1e-6)
    # the path adds one more 1 and the first 2
    assert penalised.distribution(ROW, [1, 2]) == pytest.approx(softmax([1.0, 1.75, -1.75, 1.25, 0.5]), abs=1e-6)


def test_opposite_frequency_penalties_differ():
    """Row 11: -2 repeats, +2 avoids; a penalty that is ignored gives the same token."""
    row = torch.tensor([1.0, 1.5, 0.0, 0.0, 0.0])
    outputs = {}
    for penalty in (-2.0, 2.0):
        judge = sampler(frequency_penalty=penalty, eos=())
        outputs[penalty] = []
        for position in range(4):
            outputs[penalty].append(judge.sample(row, position))
            judge.commit(outputs[penalty][-1:])
    assert outputs[-2.0] == [1, 1, 1, 1]
    assert outputs[2.0] == [1, 0, 2, 3]


def test_each_token_of_a_step_is_penalised_not_one_per_step():
    """Row 11: the k-th drafted token sees the k - 1 before it, so a path gives what single steps give."""
    row = torch.tensor([1.0, 1.5, 0.0, 0.2, 0.0])
    single, steps = sampler(frequency_penalty=1.0, eos=()), sampler(frequency_penalty=1.0, eos=())
    one_by_one: list[int] = []
    for position in range(12):
        one_by_one.append(single.sample(row, position))
        single.commit(one_by_one[-1:])
    in_steps: list[int] = []
    while len(in_steps) < 12:
        path: list[int] = []
        for _ in range(4):
            path.append(steps.sample(row, len(in_steps) + len(path), path))
        steps.commit(path)
        in_steps += path
    assert in_steps == one_by_one


def test_ends_are_barred_until_the_minimum():
    stopping = StoppingParams(100, min_new_tokens=3, stop_token_ids=(3,))
    judge = sampler(stopping=stopping)
    assert judge.sample(ROW, 0) == 0  # EOS is 1, the stop token 3
    assert judge.sample(ROW, 2, [0, 0]) == 0
    assert judge.sample(ROW, 3, [0, 0, 0]) == 1
    judge.commit([0, 0])
    assert judge.sample(ROW, 2) == 0
    assert judge.sample(ROW, 3, [0]) == 1
    assert judge.distribution(ROW).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_ignored_eos_is_not_barred():
    assert sampler(stopping=StoppingParams(100, min_new_tokens=3, ignore_eos=True)).sample(ROW, 0) == 1


def test_plain_greedy_begins_when_nothing_adjusts_the_logits():
    assert sampler().is_plain_greedy
    assert not sampler(temperature=1.0).is_plain_greedy
    assert not sampler(logit_bias={1: 1.0}).is_plain_greedy
    assert not sampler(frequency_penalty=0.1).is_plain_greedy
    judge = sampler(stopping=StoppingParams(100, min_new_tokens=2))
    assert not judge.is_plain_greedy
    judge.commit([0, 0])
    assert judge.is_plain_greedy


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"frequency_penalty": 1.0}, {"temperature": 0.5, "top_p": 0.5}]
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_target_that_gives_nan_or_infinity_is_a_fault(params, bad):
    row = ROW.clone()
    row[2] = bad
    with pytest.raises(EngineFault, match="NaN or infinity"):
        sampler(**params).sample(row, 0)


def test_row_without_any_token_is_a_fault():
    with pytest.raises(EngineFault):
        sampler(temperature=1.0).sample(torch.full((5,), -torch.inf), 0)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 3},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.8, "top_p": 0.8, "repetition_penalty": 1.5, "presence_penalty": 0.3, "logit_bias": {4: 1.0}},
    ],
)
def test_draws_follow_the_distribution(params):
    row = torch.randn(12, generator=torch.Generator().manual_seed(5))
    judge = sampler(vocab=12, prompt=(3, 4), seed=99, **params)
    judge.commit([5])
    drawn = np.bincount([judge.sample(row, position, [6]) for position in range(8000)], minlength=12)
    expected = judge.distribution(row, [6]) * 8000
    assert drawn[expected == 0].sum() == 0
    kept = expected > 0
    assert kept.sum() > 1
    assert stats.chisquare(drawn[kept], expected[kept]).pvalue > 1e-3


def test_token_depends_on_seed_and_position_alone():
    row = torch.randn(200, generator=torch.Generator().manual_seed(2))
    params = {"temperature": 1.0, "top_p": 0.95, "vocab": 200}
    first = [sampler(seed=1, **params).sample(row, position) for position in range(30)]
    judge = sampler(seed=1, **params)
    backwards = [judge.sample(row, position, [7] * (position % 5)) for position in reversed(range(30))]
    assert backwards[::-1] == first
    assert [sampler(seed=2, **params).sample(row, position) for position in range(30)] != first
    assert len(set(first)) > 5
