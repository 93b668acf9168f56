"""Temperature, top-k, top-p and min-p: which tokens of a row can be drawn, without sorting the vocabulary.

The order of the filters, and their meaning, are transformers': top-k of the row, top-p of what top-k left, min-p
relative to the best token. Ties go to the lower token id, so exactly k tokens pass top-k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from respsd.engine.noise import FloatArray
from respsd.engine.request import SamplingParams

IdArray = npt.NDArray[np.intp]

_SMALLEST_TEMPERATURE = 1e-20
"""Below it two different float32 logits are further apart than any noise reaches; smaller values only overflow."""
_FIRST_DEPTH = 4.0
"""Depth below the best scaled logit, in nats, that is searched first for the tokens of top-p."""
_FEW = 256
"""Tokens that are sorted rather than halved once more."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that can be drawn: ids (None: the whole vocabulary) and their scaled logits, the best one's being 0."""

    ids: IdArray | None
    scaled: FloatArray

    def token(self, at: int) -> int:
        """The token id of the candidate at an index."""
        return at if self.ids is None else int(self.ids[at])


def candidates(logits: FloatArray, best: float, params: SamplingParams) -> Candidates:
    """Scale a row by the temperature and filter it.

    :param logits: processed logits, float32 [vocab]; -inf is allowed, NaN is not.
    :param best: the largest of them, finite.
    """
    inverse_temperature = 1.0 / max(params.temperature, _SMALLEST_TEMPERATURE)
    with np.errstate(over="ignore"):  # to -inf, which is what a hopeless logit at a tiny temperature is
        scaled = (logits - np.float32(best)) * np.float32(inverse_temperature)
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return Candidates(None, scaled)
    if 0 < params.top_k < scaled.size:
        ids = _top_k(scaled, params.top_k)
        if params.top_p < 1.0:
            weights = np.exp(scaled[ids])
            ids = ids[: _reaching(weights, params.top_p * float(weights.sum(dtype=np.float64)))]
    elif params.top_p < 1.0:
        ids = _top_p(scaled, params.top_p)
    else:
        ids = np.arange(scaled.size)
    if params.min_p > 0.0:
        ids = ids[scaled[ids] >= np.float32(math.log(params.min_p))]
    return Candidates(ids, scaled[ids])


def _top_k(scaled: FloatArray, k: int) -> IdArray:
    """The k best ids, best first, ties by id."""
    threshold = np.partition(scaled, -k)[-k]
    return _ordered(scaled, np.flatnonzero(scaled >= threshold))[:k]


def _top_p(scaled: FloatArray, top_p: float) -> IdArray:
    """The smallest set of best ids whose probability reaches `top_p`; of equals, the lower ids.

    The vocabulary is never sorted: first the ids near the best are taken, then those whose membership is open are
    halved at their median until few are left to sort.
    """
    weights = np.exp(scaled)
    goal = top_p * float(weights.sum(dtype=np.float64))
    open_ids = _near_best(scaled, weights, goal, top_p)
    members: list[IdArray] = []
    while open_ids.size > _FEW:
        values = scaled[open_ids]
        median = np.partition(values, values.size // 2)[values.size // 2]
        upper = open_ids[values > median]
        if not upper.size:
            break
        mass = float(weights[upper].sum(dtype=np.float64))
        if mass >= goal:
            open_ids = upper
        else:
            members.append(upper)
            goal -= mass
            open_ids = open_ids[values <= median]
    last = _ordered(scaled, open_ids)
    return np.concatenate([*members, last[: _reaching(weights[last], goal)]])


def _near_best(scaled: FloatArray, weights: FloatArray, goal: float, top_p: float) -> IdArray:
    """Rising ids that hold the goal's mass and with each id all better ones.

    Ids more than d below the best have at most vocab * exp(-d) of a mass that is at least 1, so the last depth holds
    the goal for certain; the first one usually does.
    """
    certain = math.log(scaled.size / max(1.0 - top_p, 1e-9))
    for depth in (_FIRST_DEPTH, 2 * _FIRST_DEPTH):
        near = np.flatnonzero(scaled >= np.float32(-depth))
        if depth >= certain or float(weights[near].sum(dtype=np.float64)) >= goal:
            return near
    return np.flatnonzero(scaled >= np.float32(-certain))


def _reaching(weights: FloatArray, goal: float) -> int:
    """How many of the weights, in order, reach the goal: the one that crosses it counts."""
    reached = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(reached, goal)) + 1, weights.size)


def _ordered(scaled: FloatArray, ids: IdArray) -> IdArray:
    """Rising ids put in falling order of their scaled logits; a stable sort keeps the lower id first on ties."""
    order: IdArray = np.argsort(-scaled[ids], kind="stable")
    return ids[order]
