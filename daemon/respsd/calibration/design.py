"""Which actions are timed: few, and such that they determine the cost of all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from respsd.control.action import OFF, Action

_RIDGE = 1e-3


def actions_to_time(actions: Sequence[Action], count: int) -> tuple[Action, ...]:
    """Choose `count` of the actions, `off` always among them.

    One after the other, each time the action about which those chosen so far say least (the largest leverage; the
    greedy form of a D-optimal design), in terms of what costs grow with: a step's rows, by pieces, and a draft's
    levels, rows and candidates. Costs differ by orders of magnitude and relative errors matter, so terms enter by their
    logarithm.
    """
    pool = [action for action in dict.fromkeys(actions) if not action.is_off]
    chosen = [OFF]
    if not pool:
        return (OFF,)
    terms = _terms(pool)
    information = _RIDGE * np.eye(terms.shape[1])
    for _ in range(min(count - 1, len(pool))):
        leverage = np.einsum("at,tu,au->a", terms, np.linalg.inv(information), terms)
        leverage[[pool.index(action) for action in chosen[1:]]] = -1.0
        best = int(leverage.argmax())
        chosen.append(pool[best])
        information += np.outer(terms[best], terms[best])
    return tuple(chosen)


def _terms(actions: Sequence[Action]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """[actions, terms]; each term is scaled to the range from 0 to 1."""
    knobs = np.array([(np.log(a.total_tokens), np.log1p(a.depth), np.log(a.top_k)) for a in actions])
    low, high = knobs.min(axis=0), knobs.max(axis=0)
    scaled = (knobs - low) / np.where(high > low, high - low, 1.0)
    total, depth, top_k = scaled.T
    # Hats on the size of a step: each piece of the range needs a measurement of its own.
    hats = [np.maximum(0.0, 1 - np.abs(total - middle) * 4) for middle in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return np.stack([*hats, depth, top_k, depth * top_k, depth**2, top_k**2], axis=1)
