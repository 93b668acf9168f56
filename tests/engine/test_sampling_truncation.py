"""Top-k, top-p and min-p keep what transformers keeps, and ties go to the lower id."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from respsd.engine.request import SamplingParams, StoppingParams
from respsd.engine.sampling import Sampler
from respsd.engine.truncation import candidates


def kept(logits, **params) -> list[int]:
    row = np.array(logits, dtype=np.float32)
    ids = candidates(row, float(row.max()), SamplingParams(**{"temperature": 1.0, **params})).ids
    assert ids is not None
    return sorted(ids.tolist())


def log(probabilities) -> list[float]:
    return np.log(np.array(probabilities)).tolist()


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    row = log([0.1, 0.5, 0.05, 0.3, 0.05])
    assert kept(row, top_p=0.45) == [1]
    assert kept(row, top_p=0.79) == [1, 3]
    assert kept(row, top_p=0.81) == [0, 1, 3]
    assert kept(row, top_p=1e-9) == [1]


def test_top_p_ties_go_to_the_lower_id():
    assert kept(log([0.25, 0.25, 0.25, 0.25]), top_p=0.45) == [0, 1]
    assert kept([0.0] * 2000, top_p=0.2505) == list(range(501))


def test_top_k_keeps_exactly_k_and_the_lower_ids_of_equals():
    assert kept([1.0, 3.0, 2.0, 3.0], top_k=2) == [1, 3]
    assert kept([1.0, 2.0, 2.0, 2.0], top_k=2) == [1, 2]
    assert kept([1.0, 2.0], top_k=7) == [0, 1]


def test_top_p_is_taken_of_what_top_k_left():
    row = log([0.4, 0.3, 0.2, 0.1])
    assert kept(row, top_p=0.55) == [0, 1]
    assert kept(row, top_k=2, top_p=0.55) == [0]  # 0.4 of 0.7


def test_min_p_is_relative_to_the_best_after_temperature():
    row = log([0.5, 0.3, 0.15, 0.05])
    assert kept(row, min_p=0.29) == [0, 1, 2]
    assert kept(row, min_p=0.31) == [0, 1]
    assert kept(row, temperature=0.5, min_p=0.31) == [0, 1]
    assert kept(row, temperature=0.5, min_p=0.37) == [0]
    assert kept(row, min_p=1.0) == [0]


def test_impossible_tokens_are_never_needed():
    assert kept([0.0, -np.inf, 1.0, -np.inf], top_p=0.999999) == [0, 2]


@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("vocab", [7, 300, 5000])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.8, 0, 0.9, 0.0),
        (2.0, 0, 0.5, 0.0),
        (1.0, 0, 0.999, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.9, 50, 0.95, 0.05),
    ],
)
def test_distribution_equals_transformers(scale, vocab, temperature, top_k, top_p, min_p):
    """With a repetition penalty of 1.3 before them, in transformers' order."""
    rows = torch.randn(4, vocab, generator=torch.Generator().manual_seed(vocab)) * scale
    history = torch.randint(vocab, (1, 9), generator=torch.Generator().manual_seed(1))
    warpers = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=1.3)
    sampler = Sampler(params, StoppingParams(10), history[0, :6].tolist(), vocab, ())
    for row in rows:
        theirs = warpers(history, row[None].clone())[0].double().softmax(-1).numpy()
        ours = sampler.distribution(row, history[0, 6:].tolist())
        # Rounding may move the token at the very edge of top-p; its probability is then the whole difference.
        edge = theirs[theirs > 0].min() if vocab > 300 else 0.0
        assert np.abs(ours - theirs).max() <= edge + 1e-5
