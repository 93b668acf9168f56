from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from respsd.bench.paired import hodges_lehmann, paired_ratio, signed_rank_p


@pytest.mark.parametrize("count", [1, 2, 5, 8, 16, 50])
def test_p_is_scipys_exact_one_without_ties(count):
    differences = np.random.default_rng(count).normal(0.3, 1.0, count)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [51, 200])
def test_p_of_many_pairs_is_scipys_approximation(count):
    differences = np.random.default_rng(count).normal(0.1, 1.0, count).round(1)
    kept = differences[differences != 0]
    expected = stats.wilcoxon(kept, method="asymptotic").pvalue
    assert signed_rank_p(differences) == pytest.approx(expected, rel=1e-6)


def test_p_with_ties_counts_every_assignment_of_signs():
    differences = np.array([1.0, 1.0, -1.0, 2.0, 2.0, 3.0])
    ranks = stats.rankdata(np.abs(differences))
    seen = ranks[differences > 0].sum()
    sums = np.array([(ranks * signs).sum() for signs in np.ndindex(*(2,) * 6)])
    expected = min(1.0, 2 * min((sums <= seen).mean(), (sums >= seen).mean()))
    assert signed_rank_p(differences) == pytest.approx(expected)


def test_five_pairs_that_all_agree_give_the_smallest_p_there_is():
    assert signed_rank_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == 2 / 2**5


def test_equal_pairs_say_nothing():
    ratio = paired_ratio([3.0, 4.0, 5.0], [3.0, 4.0, 5.0])
    assert (ratio.ratio, ratio.low, ratio.high, ratio.p) == (1.0, 1.0, 1.0, 1.0)


def test_the_centre_is_the_median_of_pairwise_means():
    # means of 0, 1, 5: 0, 0.5, 1, 2.5, 3, 5
    assert hodges_lehmann(np.array([0.0, 1.0, 5.0])) == (1.75, 0.0, 5.0, 0.75)


def test_the_interval_of_eight_pairs_is_the_tables_one():
    # Of 36 pairwise means the tables leave out 3 at either end: P(W <= 3) = 5 / 256.
    differences = np.arange(8.0) ** 1.5
    means = sorted((differences[i] + differences[j]) / 2 for i in range(8) for j in range(i, 8))
    _, low, high, confidence = hodges_lehmann(differences)
    assert (low, high) == (means[3], means[-4])
    assert confidence == pytest.approx(1 - 2 * 5 / 256)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=60))
def test_interval_holds_the_ratio_and_turns_over_with_the_methods(speeds):
    reference = [1.0 + (place % 3) / 10 for place in range(len(speeds))]
    forward, backward = paired_ratio(speeds, reference), paired_ratio(reference, speeds)
    assert forward.low <= forward.ratio <= forward.high
    assert backward.ratio == pytest.approx(1 / forward.ratio)
    assert backward.low == pytest.approx(1 / forward.high)
    assert backward.p == pytest.approx(forward.p)


def test_an_outlier_moves_the_mean_and_hardly_the_ratio():
    ratio = paired_ratio([2.0] * 9 + [0.02], [1.0] * 10)
    assert ratio.ratio == pytest.approx(2.0)
    assert ratio.geometric_mean == pytest.approx(math.exp((9 * math.log(2) + math.log(0.02)) / 10))


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    runs = [hodges_lehmann(rng.laplace(0.1, 1.0, 10)) for _ in range(2000)]
    share = np.mean([low <= 0.1 <= high for _, low, high, _ in runs])
    assert runs[0][3] - 0.02 < share < runs[0][3] + 0.02


@pytest.mark.parametrize(("mine", "reference"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_makes_no_pairs_is_refused(mine, reference):
    with pytest.raises(ValueError, match=r"pairs|positive"):
        paired_ratio(mine, reference)
