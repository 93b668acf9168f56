"""Sampled tokens follow the target's own distribution, with and without speculation.

`RESPSD_TEST_SAMPLES=20000 pytest tests/engine/test_distribution.py` draws ten times as many.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from support import models, tiny
from support.engines import load_tiny, request, running
from test_loop import Listener

from respsd.control.action import OFF, Action
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.loop import LoopLimits
from respsd.engine.queue import QueueLimits
from respsd.engine.request import SamplingParams

PROMPT = [1, 40, 17, 99, 254, 3, 60]
TEMPERATURE, TOP_P = 0.8, 0.9
SAMPLES = int(os.environ.get("RESPSD_TEST_SAMPLES", "2000"))

Probabilities = npt.NDArray[np.float64]


@torch.inference_mode()
def next_distribution(tokens: list[int]) -> Probabilities:
    """The processed distribution by definition: softmax at the temperature, then the smallest set to reach top_p."""
    logits = models.prefill(SequenceCache(models.target().layout, 16), tokens).logits[-1].double().numpy()
    weights = np.exp((logits - logits.max()) / TEMPERATURE)
    probabilities = weights / weights.sum()
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[before >= TOP_P]] = 0.0
    return probabilities / probabilities.sum()


def sample_pairs(action: Action) -> list[tuple[int, ...]]:
    """Two tokens under each of many seeds. (Asked for four: the last of a budget is decoded plainly.)"""
    limits = LoopLimits(max_running=64, queue=QueueLimits(max_requests=SAMPLES))
    with running(load_tiny(), limits=limits, kv_tokens=100_000) as rig:
        listeners = [Listener() for _ in range(SAMPLES)]
        for seed, listener in enumerate(listeners):
            sampling = SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, seed=seed)
            rig.engine.submit(request(PROMPT, 4, action=action, sampling=sampling), listener)
        for listener in listeners:
            listener.last()
        assert action.is_off or any(step.accepted_tokens for _, step in rig.hooks.steps)
    return [tuple(listener.tokens[:2]) for listener in listeners]


@pytest.mark.slow
@pytest.mark.timeout(600 + SAMPLES // 5)
def test_pairs_of_tokens_follow_the_targets_distribution_with_and_without_speculation():
    plain = sample_pairs(OFF)
    assert sample_pairs(Action(16, 4, 4)) == plain

    expected: dict[tuple[int, int], float] = {}
    first = next_distribution(PROMPT)
    for token in np.flatnonzero(first):
        second = next_distribution([*PROMPT, int(token)])
        expected |= {(int(token), int(other)): first[token] * second[other] for other in np.flatnonzero(second)}
    observed = Counter(plain)
    assert observed.keys() <= expected.keys()

    common = [pair for pair, probability in expected.items() if probability * SAMPLES >= 5]
    counts = [observed[pair] for pair in common]
    means = [expected[pair] * SAMPLES for pair in common]
    rest = SAMPLES - sum(means)
    if rest >= 5:
        counts.append(SAMPLES - sum(counts))
        means.append(rest)
    assert len(means) > 10
    assert stats.chisquare(counts, np.array(means) * sum(counts) / sum(means)).pvalue > 1e-3
    assert tiny.VOCAB > len(np.flatnonzero(first)) > 1
