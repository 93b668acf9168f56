"""Logged windows as columns: what the learner computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Windows:
    """Explorer windows [n], lane by lane: a lane is the windows of one request, in order."""

    lane: Integers
    """Key of the request's row."""
    number: Integers
    """Of the window in its request."""
    observation: npt.NDArray[np.float32]
    """[n, width]"""
    action: Integers
    log_prob: Floats
    """Of the action under the policy that drew it."""
    version: Integers
    committed_tokens: Integers
    steps: Integers
    seconds: Floats
    context_length: Integers
    batch_size: Floats

    def __len__(self) -> int:
        return len(self.lane)

    def select(self, chosen: Mask) -> Windows:
        """The windows of a mask [n]."""
        return Windows(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def starts(self) -> Mask:
        """Where a lane begins, or goes on after windows that are not here."""
        starts = np.ones(len(self), bool)
        starts[1:] = (self.lane[1:] != self.lane[:-1]) | (self.number[1:] != self.number[:-1] + 1)
        return starts

    @classmethod
    def join(cls, parts: Sequence[Windows], width: int) -> Windows:
        """Put parts together, in order of lane and window."""
        empty = cls.empty(width)
        columns = [np.concatenate([getattr(p, f.name) for p in (empty, *parts)]) for f in fields(cls)]
        order = np.lexsort((columns[1], columns[0]))
        return cls(*(column[order] for column in columns))

    @classmethod
    def empty(cls, width: int) -> Windows:
        """No window, of observations of this width."""
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        return cls(whole, whole, np.zeros((0, width), np.float32), whole, real, whole, whole, whole, real, whole, real)


@dataclass(frozen=True, slots=True)
class SpeedRows:
    """Windows [n] of any arm, for their speed alone."""

    lane: Integers
    committed_tokens: Integers
    steps: Integers
    seconds: Floats
    context_length: Integers
    batch_size: Floats

    def __len__(self) -> int:
        return len(self.lane)
