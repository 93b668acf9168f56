"""Takes out of a window's reward what its whole request has in common: text, prompt, load of the machine.

Requests differ in speed by a third and more whatever the action. The other windows of a request tell by how much; and
since they leave the window itself out, what is subtracted does not depend on the window's own action, so that the
policy gradient's mean stays as it is and only its noise shrinks (a control variate).
"""

from __future__ import annotations

import numpy as np

from respsd.tuning.windows import Floats, Integers


def others_effect(residual: Floats, lane: Integers, weight: Floats) -> Floats:
    """The best linear guess of the request's own effect on each window, from the request's other windows; [n].

    :param residual: [n] reward less what was expected
    :param lane: [n] the request, in one run per request
    :param weight: [n] how much a window tells, its variance being proportional to 1 / weight; over 0

    A request of one window gets 0. The guess is shrunk towards 0 by the ratio of the variance within requests to that
    between them, both estimated here (one-way random effects, by moments).
    """
    _, index = np.unique(lane, return_inverse=True)
    sums: Floats = np.bincount(index, weight * residual).astype(np.float64)
    weights: Floats = np.bincount(index, weight).astype(np.float64)
    within, between = _variances(residual, weight, index, sums / weights, weights)
    if between <= 0:
        return np.zeros(len(residual))
    others: Floats = (sums[index] - weight * residual) / (weights[index] - weight + within / between)
    return np.where(weights[index] - weight > 1e-9, others, 0.0)


def _variances(
    residual: Floats, weight: Floats, index: Integers, means: Floats, weights: Floats
) -> tuple[float, float]:
    """Variance of a window of weight 1 around its request's mean, and of the requests' effects; the latter around 0."""
    degrees = len(residual) - len(means)
    if degrees <= 0:
        return 0.0, 0.0
    within = float((weight * (residual - means[index]) ** 2).sum() / degrees)
    between = float((weights * means**2).sum() - within * len(means)) / float(weights.sum())
    return within, max(between, 0.0)
