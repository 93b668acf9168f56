from __future__ import annotations

import math

import numpy as np
import pytest

from respsd.control.network import log_softmax
from respsd.control.prior import action_bias, calibrated_log_probs, entropy


def test_two_actions_by_hand():
    """Half the speed is 2**10 times less likely, plus half of the tenth that is spread evenly."""
    log_probs = calibrated_log_probs([math.log(80.0), math.log(40.0)])
    share = 1 / (1 + 2**10)
    assert np.exp(log_probs) == pytest.approx([0.9 * (1 - share) + 0.05, 0.9 * share + 0.05])


def test_every_action_keeps_a_tenth_of_an_even_chance():
    log_probs = calibrated_log_probs(np.linspace(0, -50, 400).tolist())
    assert np.exp(log_probs).sum() == pytest.approx(1.0)
    assert np.exp(log_probs).min() == pytest.approx(0.1 / 400)


def test_equal_speeds_are_drawn_evenly():
    log_probs = calibrated_log_probs([3.0] * 8)
    assert entropy(log_probs) == pytest.approx(math.log(8))
    assert action_bias(log_probs) == pytest.approx(np.zeros(8))


def test_the_bias_gives_the_distribution_back():
    log_probs = calibrated_log_probs([0.0, 0.3, -1.0, 0.1])
    bias = action_bias(log_probs)
    assert bias.dtype == np.float32
    assert log_softmax(bias.astype(float)) == pytest.approx(log_probs, abs=1e-6)


def test_entropy_of_a_coin():
    assert entropy(np.log([0.5, 0.5])) == pytest.approx(math.log(2))
