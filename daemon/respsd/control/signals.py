"""Signals: what the engine knows about a sequence for free, as numbers of order one for a policy to see.

Levels are 1-based: level l holds the nodes l tokens below the root, so an action of depth d has levels 1 to d + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from respsd.control.action import Action
from respsd.control.controller import Vector

LEVELS = 9
"""Levels told apart: depth 8, the deepest of the paper's table, has nine."""

SIGNAL_NAMES: tuple[str, ...] = (
    *(f"best_log_prob_{level}" for level in range(1, LEVELS + 1)),
    "tree_known",
    "root_entropy",
    "committed_ema",
    "committed_mean",
    *(f"acceptance_{level}" for level in range(1, LEVELS + 1)),
    "context_log",
    "context_share",
    "batch_size",
    "temperature",
    "last_total_tokens",
    "last_depth",
    "last_top_k",
    "last_off",
    "first_window",
)
"""Entry i of `SignalTracker.vector` is called `SIGNAL_NAMES[i]`:

best_log_prob_l   best cumulative draft log-probability at level l of the last tree, nats clipped to [-20, 0], over 20;
                  -1 where the tree has no node there; all 0 where there was no tree
tree_known        1 where the last step drafted a tree
root_entropy      entropy of the drafter's distribution below the root of the last tree, nats over 10; 0 without a tree
committed_ema     mean tokens committed per step, exponentially weighted (weight 0.1 for the newest), over 10
committed_mean    the same over the whole request, over 10
acceptance_l      share of trees reaching level l whose path was accepted to level l, exponentially weighted from 0.5
context_log       log2(1 + tokens in the context) over 16
context_share     tokens in the context over the context limit
batch_size        log2 of the sequences in the step, over 7
temperature       as asked for
last_total_tokens log2(total_tokens) over 7, last_depth: depth over 8, last_top_k: log2(top_k) over 5 of the last action
last_off          1 where the last action was off
first_window      1 before the first step, when every entry about steps and trees is at its start value
"""

SIGNALS_WIDTH = len(SIGNAL_NAMES)

_BATCH_SIZE = SIGNAL_NAMES.index("batch_size") - SIGNALS_WIDTH
_BATCH_SCALE = 7
_SMOOTHING = 0.1
_UNKNOWN_ACCEPTANCE = 0.5
_LOG_PROB_FLOOR = -20.0
_ENTROPY_SCALE = 10.0
_COMMITTED_SCALE = 10.0


def batch_size(observation: Vector) -> int:
    """The sequences in the step that an observation was made for; signals stand at its end."""
    return round(2 ** (_BATCH_SCALE * float(observation[_BATCH_SIZE])))


class SignalTracker:
    """Follows one sequence. `observe_step` runs every step and costs microseconds; trees are read in `vector` only."""

    def __init__(self) -> None:
        self._last: Action | None = None
        self._log_probs: Sequence[float] = ()
        self._depths: Sequence[int] = ()
        self._root_entropy = 0.0
        self._steps = 0
        self._committed = 0
        self._committed_ema = 0.0
        self._acceptance = [_UNKNOWN_ACCEPTANCE] * LEVELS

    def observe_step(
        self,
        applied: Action,
        node_log_probs: Sequence[float],
        node_depths: Sequence[int],
        root_entropy: float,
        accepted: int,
    ) -> None:
        """Take in a finished step. The sequences are kept by reference and must not change afterwards.

        :param applied: the action that the step ran
        :param node_log_probs: cumulative log-probability of every drafted node, root left out; empty for `off`
        :param node_depths: level of each of those nodes, from 1
        :param root_entropy: entropy (nats) of the drafter's distribution below the root; unread without nodes
        :param accepted: drafted tokens that the target accepted
        """
        self._last, self._log_probs, self._depths = applied, node_log_probs, node_depths
        self._root_entropy = root_entropy
        committed = accepted + 1
        self._committed += committed
        self._committed_ema += (_SMOOTHING if self._steps else 1.0) * (committed - self._committed_ema)
        self._steps += 1
        if len(node_depths):
            acceptance = self._acceptance
            for level in range(min(applied.depth + 1, LEVELS)):
                acceptance[level] += _SMOOTHING * ((accepted > level) - acceptance[level])

    def vector(self, context_length: int, context_limit: int, batch_size: float, temperature: float) -> Vector:
        """The signals now, float32 [SIGNALS_WIDTH]; all finite."""
        known = len(self._depths) > 0
        last = self._last
        drafted = last is not None and not last.is_off
        values = (
            *self._best_log_probs(),
            float(known),
            self._root_entropy / _ENTROPY_SCALE if known and math.isfinite(self._root_entropy) else 0.0,
            self._committed_ema / _COMMITTED_SCALE,
            self._committed / self._steps / _COMMITTED_SCALE if self._steps else 0.0,
            *self._acceptance,
            math.log2(1 + context_length) / 16,
            context_length / context_limit,
            math.log2(max(batch_size, 1)) / _BATCH_SCALE,
            temperature,
            math.log2(last.total_tokens) / 7 if last is not None and drafted else 0.0,
            last.depth / 8 if last is not None and drafted else 0.0,
            math.log2(last.top_k) / 5 if last is not None and drafted else 0.0,
            float(last is not None and last.is_off),
            float(last is None),
        )
        return np.array(values, np.float32)

    def _best_log_probs(self) -> list[float]:
        if not len(self._depths):
            return [0.0] * LEVELS
        levels = np.asarray(self._depths)
        log_probs = np.nan_to_num(np.asarray(self._log_probs, np.float64), nan=_LOG_PROB_FLOOR)
        best = np.full(LEVELS + 1, _LOG_PROB_FLOOR)
        shallow = levels <= LEVELS
        np.maximum.at(best, levels[shallow], log_probs[shallow])
        scaled: list[float] = (np.clip(best[1:], _LOG_PROB_FLOOR, 0.0) / -_LOG_PROB_FLOOR).tolist()
        return scaled
