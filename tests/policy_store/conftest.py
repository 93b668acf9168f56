"""A store on a clock that stands still, and small valid versions to put into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from policy_store import Architecture, Golden, ManifestDraft, PolicyStore
from policy_store.weights import actor_shapes

Weights = dict[str, npt.NDArray[np.float32]]

NOON = 1_796_040_000_123_456_789
"""2026-11-30T12:00:00.123456789Z, in nanoseconds."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PolicyStore]:
    with PolicyStore(tmp_path / "policies", lambda: NOON) as opened:
        yield opened


@pytest.fixture
def static_draft() -> ManifestDraft:
    return ManifestDraft(kind="static", action_table=((16, 4, 4),), action=(16, 4, 4), note="baseline")


@pytest.fixture
def resps_draft() -> ManifestDraft:
    return ManifestDraft(
        kind="resps",
        action_table=((1, 0, 0), (16, 4, 4)),
        architecture=Architecture(hidden_sizes=(3, 5)),
        observation_schema={"name": "test", "version": 1, "width": 4, "fingerprint": "cafe"},
        golden=Golden(observation=(0.0, 1.0, -1.0, 0.1), logits=(0.25, -0.5)),
        code_version="0.1.0",
    )


@pytest.fixture
def weights_for() -> Callable[[ManifestDraft], Weights]:
    def weights(draft: ManifestDraft) -> Weights:
        rng = np.random.default_rng(0)
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in actor_shapes(draft).items()}

    return weights
