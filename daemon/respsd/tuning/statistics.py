"""Observation statistics of a lineage, and how weights move from one set of them to the next.

Every version carries its own frozen normaliser. An update refines the statistics with the rows that it read; the first
layers are then expressed in the new ones, so that the function is the same before training starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policy_store import Normaliser
from policy_store.weights import Weights
from respsd.tuning.windows import Floats

_STD_FLOOR = 0.1
"""Signals are of order one; one that hardly varied so far must not saturate the network when it does."""
_MEMORY_WINDOWS = 20_000
"""Statistics follow the traffic: no more windows than these count as seen."""
_FIRST_LAYERS = ("mlp_extractor.policy_net.0", "mlp_extractor.value_net.0")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and standard deviation of every number of an observation, over `count` windows."""

    count: int
    mean: Floats
    std: Floats

    @classmethod
    def of_version(cls, normaliser: Normaliser | None, count: int, width: int) -> Statistics:
        """A stored version's; one without a normaliser sees raw numbers and has seen no window."""
        if normaliser is None:
            return cls(0, np.zeros(width), np.ones(width))
        return cls(count, np.array(normaliser.mean), np.array(normaliser.std))

    def refined(self, observations: npt.NDArray[np.float32]) -> Statistics:
        """Take in more observations [n, width]."""
        if not len(observations):
            return self
        new = len(observations)
        seen = min(self.count, _MEMORY_WINDOWS)
        share = new / (seen + new)
        mean = observations.mean(axis=0, dtype=np.float64)
        variance = observations.var(axis=0, dtype=np.float64)
        joint_mean = self.mean + share * (mean - self.mean)
        old_variance = self.std**2 + (self.mean - joint_mean) ** 2
        joint_variance = (1 - share) * old_variance + share * (variance + (mean - joint_mean) ** 2)
        return Statistics(self.count + new, joint_mean, np.maximum(np.sqrt(joint_variance), _STD_FLOOR))

    def normaliser(self) -> Normaliser:
        """As a version stores them."""
        return Normaliser(tuple(self.mean.tolist()), tuple(self.std.tolist()))

    def normalise(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`observations` [n, width] as the network sees them, in the policy runtime's own arithmetic."""
        mean, std = self.mean.astype(np.float32), self.std.astype(np.float32)
        normalised: npt.NDArray[np.float32] = np.divide(observations - mean, std, dtype=np.float32)
        return normalised


def express(weights: Weights, old: Statistics, new: Statistics) -> dict[str, npt.NDArray[np.float32]]:
    """The same function of raw observations, for a network that sees them normalised by `new` instead of `old`."""
    moved = dict(weights)
    for layer in _FIRST_LAYERS:
        if f"{layer}.weight" not in weights:
            continue
        weight = weights[f"{layer}.weight"].astype(np.float64)
        shift = (new.mean - old.mean) / old.std
        moved[f"{layer}.weight"] = (weight * (new.std / old.std)).astype(np.float32)
        moved[f"{layer}.bias"] = (weights[f"{layer}.bias"] + weight @ shift).astype(np.float32)
    return moved
