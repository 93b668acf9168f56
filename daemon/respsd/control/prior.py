"""The first learner's action bias: where exploration starts before anything was learnt.

The policy that maximises E[log tokens/s] + c * entropy draws actions with probabilities proportional to
(tokens/s) ** (1 / c); c is PPO's entropy coefficient in Re-SpS (arXiv 2601.12212), 0.1. The first learner is that
policy for the calibrated speeds: the balance between earning and exploring that training itself aims at. An action at
half the best one's speed is then a thousand times rarer, which is too rare to find out that the estimate was wrong; so
a tenth of the probability is spread evenly over the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from respsd.control.network import FloatArray, Logits, log_softmax

_SHARPNESS = 10.0
_EVEN_SHARE = 0.1


def calibrated_log_probs(log_speeds: Sequence[float]) -> Logits:
    """Log-probabilities [actions] from the log of each action's estimated tokens/s."""
    sharp = np.exp(log_softmax(_SHARPNESS * np.array(log_speeds)))
    log_probs: Logits = np.log((1 - _EVEN_SHARE) * sharp + _EVEN_SHARE / len(sharp))
    return log_probs


def action_bias(log_probs: Logits) -> FloatArray:
    """The bias of an action head whose softmax is `log_probs`, centred so that no weight has to be large."""
    bias: FloatArray = (log_probs - log_probs.mean()).astype(np.float32)
    return bias


def entropy(log_probs: Logits) -> float:
    """In nats."""
    return float(-(np.exp(log_probs) * log_probs).sum())
