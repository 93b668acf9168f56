"""The verdict: an anytime-valid confidence sequence on the mean log ratio, by betting.

A gambler bets against the claim "the mean is at most m" (Waudby-Smith and Ramdas, "Estimating means of bounded random
variables by betting", 2024, and the earlier one-sided form of it): on each observation x in [-clip, clip] the capital
is multiplied by 1 + stake * (x - m). Several bets run side by side, each on its part of the first capital and each
tuned to one distance d between the true mean and the claim: it stakes d / v, which makes the capital grow fastest
where the distance is d, with v the mean square of the observations before this one (the paper's predictable plug-in).
So on a quiet machine it bets boldly and on a noisy one carefully. Rollback and promotion have a sequence each.

What makes the verdict right, and who sees to it:

1. *Bounded*: x is clipped to bounds that are settings, fixed before the first observation, and a stake is cut where it
   could lose more than nearly everything at its claim, so no factor is negative.
2. *Mean under the claim*: given all that is known before an observation, its mean under equal policies is zero. The
   coin of `phases` makes it so: it is thrown per quad, independent of everything, and swapping the arms of equal
   policies only turns the sign of the clipped log ratio. Nothing need be known of the workload, which may drift,
   jump or depend on itself. One quad is one observation, however many sequences shared it.
3. *Predictable*: a stake depends on earlier observations, the claim and constants; which contest a quad belongs to is
   decided before the quad.
4. Then the capital is a non-negative supermartingale that starts at 1, and by Ville's inequality it ever reaches
   1 / alpha with probability at most alpha, however often one looks and whenever one stops. Each bound therefore holds
   for all times at once with probability 1 - alpha; both together with 1 - 2 * alpha.
5. *Ordered*: every factor falls as m grows (a stake without its cut does not depend on m, and a cut one makes the
   factor 1 + most * (x - m) / (clip + m), which falls too), so the lower bound is where the capital crosses 1 / alpha,
   found by bisection, and "the lower bound exceeds m" is one comparison.

Clipping pulls large effects towards zero and never past it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Bets = tuple[tuple[float, float], ...]
"""Distances from the claim, as log ratios, and the part of the capital that bets on each; the parts sum to 1."""

AGAINST_SLOWER: Bets = ((0.05, 0.75), (0.3, 0.25))
"""For rollbacks: 5 % is the loss that is hard to see; what loses far more has to go within a few requests."""
FOR_GOOD_ENOUGH: Bets = ((0.02, 0.4), (0.07, 0.4), (0.3, 0.2))
"""For promotions, which measure from the margin: as fast as the champion, 5 % faster, far faster."""

_MOST = 0.95
"""Share of the capital that the worst observation may cost."""
_PRIOR_OBSERVATIONS, _PRIOR_SQUARE = 8, 0.2**2
"""What the mean square is taken for before there are observations, and how many that counts for."""
_BISECTIONS = 40


class Verdict(StrEnum):
    """What the evidence says."""

    ROLLBACK = "rollback"
    PROMOTE = "promote"
    HOLD = "hold"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How much evidence a verdict needs; fixed for the time of an evaluation."""

    margin: float = 0.02
    """A candidate may be this share slower and still be promoted."""
    alpha: float = 0.01
    """Probability of rolling back a policy that is not slower, and of promoting one that is slower by the margin."""
    clip: float = 0.5
    """Log ratios are cut to [-clip, clip]."""
    min_pairs: int = 8
    """Observations before any verdict."""
    max_pairs: int = 1500
    """Observations after which the evaluation ends without one."""

    @property
    def floor(self) -> float:
        """The margin as a log ratio."""
        return math.log1p(-self.margin)


class Wager:
    """Bets against "the mean is on the other side of `mean`"; `side` +1 bets that it is greater, -1 that it is less."""

    def __init__(self, clip: float, mean: float, side: int, bets: Bets) -> None:
        self._mean = mean
        self._side = side
        self._distances, parts = (np.array(column) for column in zip(*bets, strict=True))
        self._most_stake = _MOST / (clip + side * mean) if clip + side * mean > 0 else math.inf
        self._squares, self._count = _PRIOR_OBSERVATIONS * _PRIOR_SQUARE, _PRIOR_OBSERVATIONS
        self._log_capital: Floats = np.log(parts)

    def observe(self, clipped: float) -> None:
        """Settle the bets on one observation."""
        stakes = np.minimum(self._distances * self._count / self._squares, self._most_stake)
        self._log_capital += np.log1p(self._side * stakes * (clipped - self._mean))
        self._squares += clipped * clipped
        self._count += 1

    def observe_all(self, clipped: Floats) -> None:
        """Settle the bets on many, [observations], as `observe` does one by one."""
        squares = self._squares + np.concatenate(([0.0], np.cumsum(clipped**2)))
        counts = self._count + np.arange(len(clipped) + 1)
        stakes = np.minimum(self._distances[:, None] * counts[:-1] / squares[:-1], self._most_stake)  # by those before
        self._log_capital += np.log1p(self._side * stakes * (clipped - self._mean)).sum(axis=1)
        self._squares, self._count = float(squares[-1]), int(counts[-1])

    def has(self, log_capital: float) -> bool:
        """Whether the capital is at least that; cheap where it is far from it."""
        if float(self._log_capital.max()) + math.log(len(self._log_capital)) < log_capital:
            return False
        return self.log_capital >= log_capital

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital, of which 1 was there at first."""
        highest = float(self._log_capital.max())
        return highest + math.log(float(np.exp(self._log_capital - highest).sum()))


def bounds(clipped: Sequence[float], clip: float, alpha: float) -> tuple[float, float]:
    """The confidence sequence's interval after these observations; each bound alone holds with 1 - alpha."""
    values = np.asarray(clipped, dtype=np.float64)
    lower = _bound(values, clip, alpha, +1, FOR_GOOD_ENOUGH)
    return lower, _bound(values, clip, alpha, -1, AGAINST_SLOWER)


def _bound(values: Floats, clip: float, alpha: float, side: int, bets: Bets) -> float:
    """The farthest mean, from the far end of the range towards the data, that the bets refute."""
    refuted, standing = -side * clip, side * clip
    needed = -math.log(alpha)
    for _ in range(_BISECTIONS):
        middle = (refuted + standing) / 2
        wager = Wager(clip, middle, side, bets)
        wager.observe_all(values)
        if wager.has(needed):
            refuted = middle
        else:
            standing = middle
    return refuted


class Judge:
    """Turns log ratios, one at a time, into a verdict."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self._slower = Wager(settings.clip, 0.0, -1, AGAINST_SLOWER)
        self._good_enough = Wager(settings.clip, settings.floor, +1, FOR_GOOD_ENOUGH)
        self._needed = -math.log(settings.alpha)
        self._clipped: list[float] = []
        self._refuted: Verdict | None = None
        self._bounds: tuple[int, float, float] = (0, -settings.clip, settings.clip)

    @property
    def pairs(self) -> int:
        """Observations so far."""
        return len(self._clipped)

    @property
    def mean(self) -> float:
        """Mean of the clipped log ratios; 0 before the first."""
        return sum(self._clipped) / len(self._clipped) if self._clipped else 0.0

    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the mean log ratio."""
        if self._bounds[0] != self.pairs:  # they cost milliseconds, and are asked for more often than they change
            self._bounds = (self.pairs, *bounds(self._clipped, self.settings.clip, self.settings.alpha))
        return self._bounds[1:]

    def observe(self, log_ratio: float) -> Verdict:
        """Take one observation; what the evidence says now."""
        clipped = min(max(log_ratio, -self.settings.clip), self.settings.clip)
        self._clipped.append(clipped)
        self._slower.observe(clipped)
        self._good_enough.observe(clipped)
        if self._refuted is None:  # the first crossing counts, at whatever time it was
            if self._slower.has(self._needed):
                self._refuted = Verdict.ROLLBACK
            elif self._good_enough.has(self._needed):
                self._refuted = Verdict.PROMOTE
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        """What the evidence says."""
        if self._refuted is not None and self.pairs >= self.settings.min_pairs:
            return self._refuted
        return Verdict.INCONCLUSIVE if self.pairs >= self.settings.max_pairs else Verdict.HOLD
