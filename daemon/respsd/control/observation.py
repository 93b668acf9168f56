"""What a policy sees: the target's hidden features, tamed, followed by the engine's signals.

Raw residual-stream values have outlier channels a hundred times the rest, which would saturate a tanh network; so each
of the three blocks (low | mid | high) is divided by its own root mean square first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from respsd.control.controller import Vector
from respsd.control.linear import matvec
from respsd.control.signals import SIGNAL_NAMES, SIGNALS_WIDTH

BLOCKS = 3
"""Hidden-state blocks in the features: low, mid and high layer."""
_EPSILON = 1e-12
"""Keeps a block of zeros at zero."""


@dataclass(frozen=True)
class ObservationSchema:
    """The meaning of every number of an observation; policies and rows carry its fingerprint."""

    feature_width: int
    """3 * hidden size of the target."""
    projection: int | None = 64
    """Numbers that the features are projected to; None keeps all of them."""
    projection_seed: int = 0
    name: str = "respsd"
    version: int = 1

    def __post_init__(self) -> None:
        if self.feature_width < BLOCKS or self.feature_width % BLOCKS:
            raise ValueError(f"feature_width {self.feature_width} is not a positive multiple of {BLOCKS}")
        if self.projection is not None and self.projection < 1:
            raise ValueError(f"projection {self.projection} is not positive; None keeps the features whole")

    @property
    def width(self) -> int:
        """Numbers in an observation."""
        return (self.projection or self.feature_width) + SIGNALS_WIDTH

    @cached_property
    def fingerprint(self) -> str:
        """A short hash over everything that gives the numbers their meaning."""
        text = json.dumps(self._meaning(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _meaning(self) -> dict[str, object]:
        return {
            "name": self.name,
            "version": self.version,
            "feature_width": self.feature_width,
            "projection": self.projection,
            "projection_seed": self.projection_seed,
            "signals": list(SIGNAL_NAMES),
        }

    def to_dict(self) -> dict[str, object]:
        """As a manifest stores it: JSON types only, `width` and `fingerprint` included."""
        return {**self._meaning(), "width": self.width, "fingerprint": self.fingerprint}

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> ObservationSchema:
        """Read `to_dict`'s form; raise ValueError where this code would not build the same observation."""

        def integer(key: str) -> int:
            value = stored.get(key)
            if not isinstance(value, int):
                raise ValueError(f"observation schema: {key} is {value!r}, not an integer")
            return value

        schema = cls(
            feature_width=integer("feature_width"),
            projection=None if stored.get("projection") is None else integer("projection"),
            projection_seed=integer("projection_seed"),
            name=str(stored.get("name")),
            version=integer("version"),
        )
        if schema.to_dict() != dict(stored):
            raise ValueError(f"observation schema {stored.get('fingerprint')!r} is not one that this code builds")
        return schema


class ObservationBuilder:
    """Builds the observations of one schema; holds the projection."""

    def __init__(self, schema: ObservationSchema) -> None:
        self.schema = schema
        self._projection: Vector | None = None  # [projection, feature_width]
        if schema.projection is not None:
            generator = np.random.Generator(np.random.PCG64(schema.projection_seed))
            shape = (schema.projection, schema.feature_width)
            matrix = generator.standard_normal(shape) / np.sqrt(schema.feature_width)
            self._projection = matrix.astype(np.float32)

    def build(self, features: Vector | None, signals: Vector) -> Vector:
        """Join features and signals.

        :param features: [feature_width] at the last committed position; None, or any number that is not finite, counts
            as not known and gives zeros
        :param signals: [SIGNALS_WIDTH] of `SignalTracker.vector`
        :return: [schema.width]
        """
        observation = np.zeros(self.schema.width, np.float32)
        observation[-SIGNALS_WIDTH:] = signals
        if features is not None and np.isfinite(features).all():
            observation[:-SIGNALS_WIDTH] = self._encode(features)
        return observation

    def _encode(self, features: Vector) -> Vector:
        blocks = features.reshape(BLOCKS, -1)  # [3, hidden]
        mean_square = np.mean(np.square(blocks, dtype=np.float64), axis=1, keepdims=True)
        scaled: Vector = (blocks / np.sqrt(mean_square + _EPSILON)).astype(np.float32).reshape(-1)
        return scaled if self._projection is None else matvec(self._projection, scaled)
