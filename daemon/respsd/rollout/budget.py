"""The error probability that a day's evaluations may spend together.

By the union bound the sum of what the rounds of a day spend bounds the probability that any of them errs. A round gets
`alpha`, but never more than half of what the last 24 hours have left, so that there is always something for the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

DAY_NS = 86_400 * 10**9
_LEAST = 1e-9
"""With nothing at all no evidence would ever do; a day has no room for so many rounds that these add up."""


class AlphaBudget:
    """Hands out error probabilities."""

    def __init__(self, alpha: float, per_day: float, spent: Iterable[tuple[int, float]] = ()) -> None:
        """:param spent: when (UTC, nanoseconds) which part went to earlier rounds, oldest first"""
        self._alpha = alpha
        self._per_day = per_day
        self._spent = deque(spent)

    def take(self, now_ns: int) -> float:
        """The error probability of a round that starts now."""
        while self._spent and self._spent[0][0] <= now_ns - DAY_NS:
            self._spent.popleft()
        left = max(self._per_day - sum(part for _, part in self._spent), 0.0)
        part = max(min(self._alpha, left / 2), _LEAST)
        self._spent.append((now_ns, part))
        return part
