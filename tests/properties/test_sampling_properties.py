"""The sampler for any row and parameters: what top-p keeps, and that commit, path and step size change no token."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from respsd.engine.request import SamplingParams, StoppingParams
from respsd.engine.sampling import Sampler
from respsd.engine.truncation import candidates

VOCAB = 600

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 20]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=3),
    seed=st.integers(0, 2**63 - 1),
)


def random_row(seed: int, scale: float, steps: int = 0) -> torch.Tensor:
    """Normal logits; `steps` rounds them, which makes ties."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale
    return (row * steps).round() / steps if steps else row


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 20), st.sampled_from([0, 1, 4]), st.floats(0.01, 0.9999))
def test_top_p_keeps_the_best_tokens_and_no_more_than_it_needs(seed, scale, steps, top_p):
    row = random_row(seed, scale, steps).numpy()
    ids = candidates(row, float(row.max()), SamplingParams(temperature=1.0, top_p=top_p)).ids
    assert ids is not None
    order = np.lexsort((np.arange(VOCAB), -row))  # best first, ties by id
    assert set(ids.tolist()) == set(order[: len(ids)].tolist())
    mass = np.exp(row[order].astype(np.float64) - row.max())
    reached = np.cumsum(mass) / mass.sum()
    assert reached[len(ids) - 1] >= top_p - 1e-6
    assert len(ids) == 1 or reached[len(ids) - 2] < top_p + 1e-6


@settings(deadline=None)
@given(
    params,
    st.integers(0, 1000),
    st.lists(st.integers(0, VOCAB - 1), max_size=8),
    st.integers(0, 8),
    st.integers(0, 6),
    st.integers(0, 10_000),
)
def test_committed_tokens_and_a_path_count_alike(params, seed, tokens, split, minimum, position):
    row = random_row(seed, 1.0)
    stopping = StoppingParams(100, min_new_tokens=minimum, stop_token_ids=(int(row.argmax()),))
    drawn = []
    for committed in {0, min(split, len(tokens)), len(tokens)}:
        sampler = Sampler(params, stopping, [3, 3, 500], VOCAB, (4,))
        sampler.commit(tokens[: committed // 2])
        sampler.commit(tokens[committed // 2 : committed])
        path = tokens[committed:]
        drawn.append(sampler.sample(row, position, path))
        assert sampler.sample(row, position, path) == drawn[-1]
        assert sampler.distribution(row, path)[drawn[-1]] > 0
    assert len(set(drawn)) == 1
