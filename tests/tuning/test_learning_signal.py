"""Rewards, the baseline's speed, and the request's own effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.tuning.baseline_speed import SpeedPoint, fit_baseline_speed
from respsd.tuning.request_effect import others_effect
from respsd.tuning.reward import REWARDS
from respsd.tuning.windows import SpeedRows


def test_rewards_of_a_known_window() -> None:
    tokens, seconds, baseline = np.array([60]), np.array([2.0]), np.log([20.0])
    assert REWARDS["log_speed"](tokens, seconds, baseline) == pytest.approx([math.log(1.5)])
    assert REWARDS["relative_speed"](tokens, seconds, baseline) == pytest.approx([0.5])
    assert REWARDS["tokens_per_second"](tokens, seconds, baseline) == pytest.approx([30.0])


def speed_rows(count: int, factor: float = 1.0) -> SpeedRows:
    """Speeds that are exactly `factor * 100 * (1 + context) ** -0.1 * batch ** -0.5`."""
    rng = np.random.default_rng(0)
    context, batch = rng.integers(10, 4000, count), rng.integers(1, 9, count).astype(float)
    speed = factor * 100 * (1.0 + context) ** -0.1 * batch**-0.5
    return SpeedRows(np.arange(count), np.full(count, 30), np.full(count, 10), 30 / speed, context, batch)


def test_the_baselines_own_windows_come_first() -> None:
    fitted = fit_baseline_speed(speed_rows(500), [SpeedPoint(100, 1, 5.0)], speed_rows(500, 7))
    assert fitted.source == "baseline windows"
    found = fitted.log_speed(np.array([100, 2000]), np.array([1.0, 4.0]))
    assert found == pytest.approx(np.log([100 * 101**-0.1, 100 * 2001**-0.1 * 0.5]), abs=0.01)


def test_then_the_calibration_then_any_windows() -> None:
    few, points = speed_rows(63), [SpeedPoint(100, 1, 50.0), SpeedPoint(1000, 1, 40.0)]
    calibrated = fit_baseline_speed(few, points, speed_rows(500))
    assert calibrated.source == "calibration"
    assert calibrated.log_speed(np.array([100, 1000]), np.ones(2)) == pytest.approx(np.log([50, 40]), abs=0.01)
    assert fit_baseline_speed(few, [], speed_rows(10)).source == "all windows"
    with pytest.raises(ValueError, match="no window"):
        fit_baseline_speed(few, [], speed_rows(0))


def test_numbers_that_never_vary_have_no_slope() -> None:
    rows = SpeedRows(*(np.full(100, value) for value in (1, 30, 10)), np.full(100, 0.5), np.full(100, 64), np.ones(100))
    fitted = fit_baseline_speed(rows, [], rows)
    assert (fitted.length, fitted.batch) == pytest.approx((0.0, 0.0), abs=1e-12)  # how zeros sum is the processor's
    assert fitted.log_speed(np.array([5000]), np.array([8.0])) == pytest.approx([math.log(60)])


def test_the_effect_of_two_requests_by_hand() -> None:
    residual, lane = np.array([1.0, 3.0, -2.0, -2.0]), np.array([7, 7, 9, 9])
    # within: (1 + 1 + 0 + 0) / 2 = 1; between: (2 * 4 + 2 * 4 - 1 * 2) / 4 = 3.5; shrunken by 1 + 1 / 3.5
    shrink = 1 / (1 + 1 / 3.5)
    expected = np.array([3.0, 1.0, -2.0, -2.0]) * shrink
    assert others_effect(residual, lane, np.ones(4)) == pytest.approx(expected)


def test_a_request_of_one_window_has_no_effect_to_take_out() -> None:
    residual = np.array([5.0, 1.0, 1.1, -4.0, -4.2])
    assert others_effect(residual, np.array([1, 2, 2, 3, 3]), np.ones(5))[0] == 0


def test_noise_of_requests_is_taken_out_and_the_actions_effect_stays() -> None:
    rng = np.random.default_rng(0)
    lane = np.repeat(np.arange(400), 8)
    good = rng.random(len(lane)) < 0.5
    reward = rng.normal(0, 0.35, 400)[lane] + 0.1 * good + rng.normal(0, 0.05, len(lane))
    left = reward - others_effect(reward, lane, np.ones(len(lane)))
    assert left[good].mean() - left[~good].mean() == pytest.approx(0.1, abs=0.01)
    assert left.std() < 0.1 < 0.3 < reward.std()


@given(st.integers(0, 2**32 - 1), st.floats(-5, 5))
def test_a_windows_own_reward_never_enters_its_own_effect_but_through_the_variances(seed: int, change: float) -> None:
    rng = np.random.default_rng(seed)
    lane, residual = np.repeat(np.arange(20), 5), rng.normal(0, 1, 100) + np.repeat(rng.normal(0, 3, 20), 5)
    changed = residual.copy()
    changed[0] += change
    before, after = (others_effect(values, lane, np.ones(100))[0] for values in (residual, changed))
    others = residual[1:5].sum()
    assert np.sign(before) == np.sign(after) == np.sign(others)
    assert abs(after) <= abs(others) / 4 + 1e-12
