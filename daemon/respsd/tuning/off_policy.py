"""The value of a policy that did not choose the logged windows: self-normalised importance sampling.

    value = sum(weight * reward) / sum(weight),  weight = probability under the policy / probability under the log's

Windows of one request are alike, so the interval resamples whole requests (cluster bootstrap).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from respsd.tuning.windows import Floats, Integers

_RESAMPLES = 400
_QUANTILES = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated mean reward, with a 95 % interval."""

    mean: float
    low: float
    high: float
    effective_windows: float
    """`sum(weight)**2 / sum(weight**2)`: how many windows of the policy itself would tell as much."""


def estimate(weight: Floats, reward: Floats, lane: Integers, rng: np.random.Generator) -> Estimate | None:
    """Estimate from windows [n]; None where no window has weight.

    :param weight: [n] importance weights; all 1 for the policy that chose the windows
    """
    if not weight.sum() > 0:
        return None
    _, index = np.unique(lane, return_inverse=True)
    weights, rewards = np.bincount(index, weight), np.bincount(index, weight * reward)
    requests = len(weights)
    counts = rng.multinomial(requests, np.full(requests, 1 / requests), size=_RESAMPLES)  # [resamples, requests]
    totals = counts @ weights
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = (counts @ rewards) / totals
    low, high = np.quantile(resampled[totals > 0], _QUANTILES)
    return Estimate(
        mean=float(rewards.sum() / weights.sum()),
        low=float(low),
        high=float(high),
        effective_windows=effective_windows(weight),
    )


def effective_windows(weight: Floats) -> float:
    """Effective sample size of importance weights [n]; 0 of none."""
    total = float((weight**2).sum())
    return float(weight.sum()) ** 2 / total if total > 0 else 0.0
