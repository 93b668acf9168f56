"""Percentiles of durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations, in seconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """None where there is no value."""
        if not values:
            return None
        return cls(*(float(each) for each in np.percentile(np.asarray(values), (50, 90, 99))))
