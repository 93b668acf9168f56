"""How fast the baseline decodes at a context length and batch size: what rewards are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from respsd.tuning.windows import Floats, Integers, SpeedRows

_RIDGE = 1e-3
"""Holds a coefficient at 0 where its number never varies."""
ENOUGH_WINDOWS = 64
"""Windows that a fit needs."""


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """A calibrated speed."""

    context_length: int
    batch_size: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class BaselineSpeed:
    """`log tokens/s = intercept + length * log2(1 + context) + batch * log2(batch size)`."""

    source: str
    """`baseline windows`, `calibration` or `all windows`."""
    intercept: float
    length: float
    batch: float

    def log_speed(self, context_length: Integers, batch_size: Floats) -> Floats:
        """Natural log of the baseline's tokens/s, [n]."""
        features = _features(context_length, batch_size)
        log_speed: Floats = features @ np.array([self.intercept, self.length, self.batch])
        return log_speed


def fit_baseline_speed(baseline: SpeedRows, calibration: Sequence[SpeedPoint], everything: SpeedRows) -> BaselineSpeed:
    """Fit to the baseline's own windows where there are enough, else to calibrated speeds, else to any windows.

    Raises ValueError where there is nothing to fit to.
    """
    if len(baseline) >= ENOUGH_WINDOWS:
        return _fit_rows("baseline windows", baseline)
    if calibration:
        return _fit(
            "calibration",
            np.array([point.context_length for point in calibration]),
            np.array([point.batch_size for point in calibration], np.float64),
            np.log([point.tokens_per_second for point in calibration]),
            np.ones(len(calibration)),
        )
    if not len(everything):
        raise ValueError("there is no window and no calibration to fit the baseline's speed to")
    return _fit_rows("all windows", everything)


def _fit_rows(source: str, rows: SpeedRows) -> BaselineSpeed:
    log_speed = np.log(rows.committed_tokens / rows.seconds)
    return _fit(source, rows.context_length, rows.batch_size, log_speed, rows.steps.astype(np.float64))


def _fit(source: str, context_length: Integers, batch_size: Floats, log_speed: Floats, weight: Floats) -> BaselineSpeed:
    """Weighted ridge regression around the mean."""
    features = _features(context_length, batch_size)[:, 1:]
    weight = weight / weight.sum()
    centre, level = weight @ features, weight @ log_speed
    centred = features - centre
    gram = centred.T @ (weight[:, None] * centred) + _RIDGE * np.eye(2)
    length, batch = np.linalg.solve(gram, centred.T @ (weight * (log_speed - level)))
    intercept = float(level - centre @ [length, batch])
    return BaselineSpeed(source, intercept, float(length), float(batch))


def _features(context_length: Integers, batch_size: Floats) -> Floats:
    """[n, 3]"""
    return np.stack(
        [np.ones(len(context_length)), np.log2(1.0 + context_length), np.log2(np.maximum(batch_size, 1.0))], axis=1
    )
