"""The noise of sampling: fixed for ever by (seed, position, token id), independent across them, Gumbel distributed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from respsd.engine.noise import gumbel, gumbel_of, random_words


def test_words_never_change():
    """Hard values: a change here changes every seeded output that was ever given."""
    assert random_words(0, 0, 4).tolist() == [2915156180, 1042660236, 2246579900, 3371978722]
    assert random_words(42, 7, 3).tolist() == [960605437, 2306661243, 3127491457]
    assert random_words(2**63 - 1, 131071, 2).tolist() == [207200192, 1316486063]


def test_values_by_hand():
    words = np.array([2**31, 2**30, 3 * 2**30], dtype=np.uint32)
    expected = [-np.log(-np.log(1 - u)) for u in (0.5, 0.25, 0.75)]
    assert gumbel_of(words) == pytest.approx(expected, rel=1e-6)


def test_extreme_words_stay_finite():
    noise = gumbel_of(np.array([0, 1, 2**32 - 1], dtype=np.uint32))
    assert np.isfinite(noise).all()
    assert noise[0] == noise[1] == pytest.approx(32 * np.log(2), rel=1e-6)
    assert noise.dtype == np.float32


def test_same_key_gives_the_same_noise_for_any_vocabulary_length():
    assert np.array_equal(gumbel(5, 9, 1000), gumbel(5, 9, 1000))
    assert np.array_equal(gumbel(5, 9, 1001)[:999], gumbel(5, 9, 999))


@pytest.mark.parametrize("other", [(5, 10), (6, 9), (9, 5)])
def test_other_seed_or_position_shares_nothing(other):
    ours, theirs = random_words(5, 9, 20_000), random_words(*other, 20_000)
    assert np.mean(ours == theirs) < 1e-3
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 0.03


def test_neighbouring_positions_do_not_overlap():
    """Each position has a stream of its own, not a shifted view of its neighbour's."""
    assert not set(random_words(1, 0, 5000).tolist()) & set(random_words(1, 1, 50).tolist())


def test_distribution_is_standard_gumbel():
    assert stats.kstest(gumbel(123, 456, 100_000), "gumbel_r").pvalue > 0.01
    across_positions = np.array([gumbel(7, position, 3)[1] for position in range(5000)])
    assert stats.kstest(across_positions, "gumbel_r").pvalue > 0.01
    across_seeds = np.array([gumbel(seed, 3, 3)[2] for seed in range(5000)])
    assert stats.kstest(across_seeds, "gumbel_r").pvalue > 0.01


def test_best_of_logits_plus_noise_follows_the_softmax():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities)
    drawn = np.array([np.argmax(logits + gumbel(11, position, 4)) for position in range(20_000)])
    counts = np.bincount(drawn, minlength=4)
    assert stats.chisquare(counts, probabilities * len(drawn)).pvalue > 0.01
