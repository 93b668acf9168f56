"""What a window earned, as a learner sees it: named functions of its tokens and seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from respsd.tuning.windows import Floats, Integers

Reward = Callable[[Integers, Floats, Floats], Floats]
"""Of committed tokens [n], seconds [n] and the baseline's log tokens/s there [n]."""


def log_speed(tokens: Integers, seconds: Floats, baseline: Floats) -> Floats:
    """Log tokens/s less the baseline's: 0.1 is ten percent faster, on any machine and at any context length."""
    speed: Floats = np.log(tokens / seconds) - baseline
    return speed


def relative_speed(tokens: Integers, seconds: Floats, baseline: Floats) -> Floats:
    """Tokens/s over the baseline's, less 1."""
    speed: Floats = tokens / seconds / np.exp(baseline) - 1
    return speed


def tokens_per_second(tokens: Integers, seconds: Floats, baseline: Floats) -> Floats:  # noqa: ARG001
    """Plain tokens/s, as Re-SpS has it (arXiv 2601.12212); its scale is the machine's."""
    return tokens / seconds


REWARDS: dict[str, Reward] = {
    "log_speed": log_speed,
    "relative_speed": relative_speed,
    "tokens_per_second": tokens_per_second,
}
