"""Statistics of paired measurements: two ways of decoding answered the same questions, which one is faster?

Each pair gives the logarithm of a ratio of speeds. Wilcoxon's signed-rank test asks whether these lie around 0, and
the Hodges-Lehmann estimate (the median of all pairwise means) with its interval inverts the same test, so estimate,
interval and p agree with each other. Both are by ranks: one question that a busy machine slowed down threefold
moves them little. For up to `_EXACT_PAIRS` pairs the test's distribution is counted, not approximated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

_EXACT_PAIRS = 50
_NORMAL = NormalDist()

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """How much faster one way is than another on the same questions; 2.0 is twice as fast."""

    ratio: float
    """Hodges-Lehmann estimate of the ratio."""
    low: float
    high: float
    confidence: float
    """That the interval holds the ratio: CONFIDENCE, or what so few pairs can give (0.75 with 3)."""
    p: float
    """Of Wilcoxon's signed-rank test, two-sided; 1 where all pairs are equal."""
    geometric_mean: float
    pairs: int


def paired_ratio(mine: Sequence[float], reference: Sequence[float]) -> PairedRatio:
    """The ratio of paired positive speeds; raises ValueError where there is no pair or a speed is not positive."""
    if not mine or len(mine) != len(reference):
        raise ValueError(f"{len(mine)} and {len(reference)} speeds make no pairs")
    if min(*mine, *reference) <= 0.0:
        raise ValueError("speeds must be positive")
    logs = np.log(np.asarray(mine, np.float64)) - np.log(np.asarray(reference, np.float64))
    centre, low, high, confidence = hodges_lehmann(logs)
    return PairedRatio(
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        confidence=confidence,
        p=signed_rank_p(logs),
        geometric_mean=math.exp(float(logs.mean())),
        pairs=len(mine),
    )


def signed_rank_p(differences: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test. Zeros are left out, ties share the mean of their ranks."""
    differences = differences[differences != 0.0]
    count = differences.size
    if count == 0:
        return 1.0
    doubled = np.rint(2 * _midranks(np.abs(differences))).astype(np.int64)  # whole numbers also where ranks are shared
    positive = int(doubled[differences > 0].sum())
    if count <= _EXACT_PAIRS:
        weights = _signed_sums(doubled)
        lower, upper = weights[: positive + 1].sum(), weights[positive:].sum()
        return float(min(1.0, 2 * min(lower, upper)))
    mean, variance = doubled.sum() / 2, np.square(doubled.astype(np.float64)).sum() / 4
    return float(min(1.0, 2 * _NORMAL.cdf(-abs(positive - mean) / math.sqrt(variance))))


def hodges_lehmann(differences: Floats, confidence: float = CONFIDENCE) -> tuple[float, float, float, float]:
    """Centre of the differences, low and high end of its interval, and the confidence that the interval reaches."""
    count = differences.size
    left, right = np.triu_indices(count)
    means = np.sort((differences[left] + differences[right]) / 2)  # [count * (count + 1) / 2]
    cut, attained = _cut(count, confidence)
    return float(np.median(means)), float(means[cut]), float(means[means.size - 1 - cut]), attained


def _cut(count: int, confidence: float) -> tuple[int, float]:
    """Pairwise means to leave out at either end, and the confidence that this gives."""
    if count > _EXACT_PAIRS:
        total = count * (count + 1) / 2
        deviation = math.sqrt(total * (2 * count + 1) / 12)
        cut = max(0, math.floor(total / 2 - _NORMAL.inv_cdf((1 + confidence) / 2) * deviation) - 1)
        return cut, confidence
    below = np.cumsum(_signed_sums(np.arange(1, count + 1)))  # P(W <= w)
    cut = max(0, int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1)
    return cut, float(1 - 2 * below[cut])


def _signed_sums(ranks: npt.NDArray[np.int64]) -> Floats:
    """Probability of each sum of the ranks that got a plus, where every sign is as likely as the other."""
    weights = np.zeros(int(ranks.sum()) + 1)
    weights[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(weights)
        shifted[rank:] = weights[: weights.size - rank]
        weights = (weights + shifted) / 2
    return weights


def _midranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    midranks: Floats = (ends - (counts - 1) / 2)[places]
    return midranks
