from __future__ import annotations

import numpy as np
import pytest

from respsd.tuning.off_policy import effective_windows, estimate


def test_the_estimate_by_hand() -> None:
    weight, reward, lane = np.array([1.0, 3.0, 0.0]), np.array([2.0, 4.0, 100.0]), np.array([1, 1, 2])
    found = estimate(weight, reward, lane, np.random.default_rng(0))
    assert found is not None
    assert found.mean == pytest.approx((2 + 12) / 4)
    assert found.effective_windows == pytest.approx(16 / 10)


def test_without_weight_there_is_no_estimate() -> None:
    assert estimate(np.zeros(3), np.ones(3), np.arange(3), np.random.default_rng(0)) is None
    assert estimate(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.random.default_rng(0)) is None
    assert effective_windows(np.zeros(0)) == 0


def test_it_finds_the_value_of_a_policy_that_did_not_choose() -> None:
    rng = np.random.default_rng(0)
    true_reward, behaviour, target = np.array([0.0, 1.0, 2.0]), np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.2, 0.7])
    action = rng.choice(3, 6000, p=behaviour)
    reward = true_reward[action] + rng.normal(0, 0.5, 6000)
    found = estimate((target / behaviour)[action], reward, np.arange(6000) // 5, rng)
    assert found is not None
    assert found.low < target @ true_reward < found.high
    assert found.high - found.low < 0.2


def test_the_interval_covers_the_truth_and_counts_requests_not_windows() -> None:
    """Windows of a request share its noise: an interval over windows would be far too narrow."""
    hits = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        lane = np.repeat(np.arange(60), 10)
        reward = rng.normal(0, 1, 60)[lane] + rng.normal(0, 0.1, 600)
        found = estimate(np.ones(600), reward, lane, rng)
        assert found is not None
        hits += found.low <= 0 <= found.high
    assert hits >= 87  # of 95 expected; below it once in some thousand runs
