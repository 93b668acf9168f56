from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from respsd.control.observation import ObservationBuilder, ObservationSchema
from respsd.control.signals import SIGNALS_WIDTH

SIGNALS = np.linspace(-1, 1, SIGNALS_WIDTH, dtype=np.float32)
FULL = ObservationSchema(feature_width=6, projection=None)
PROJECTED = ObservationSchema(feature_width=6, projection=4, projection_seed=7)


def test_each_block_is_divided_by_its_own_root_mean_square() -> None:
    features = np.array([3, 4, 0.3, 0.4, -300, -400], np.float32)  # each block: root mean square 5/sqrt(2) * scale
    observation = ObservationBuilder(FULL).build(features, SIGNALS)
    low, high = 3 / np.sqrt(12.5), 4 / np.sqrt(12.5)
    assert observation.dtype == np.float32
    assert observation[:6] == pytest.approx([low, high, low, high, -low, -high], rel=1e-6)
    assert np.array_equal(observation[6:], SIGNALS)


def test_the_projection_is_the_seeded_gaussian_matrix_over_the_root_of_the_width() -> None:
    features = np.array([1, -1, 1, 1, -1, 1], np.float32)  # already of root mean square 1
    observation = ObservationBuilder(PROJECTED).build(features, SIGNALS)
    matrix = np.random.Generator(np.random.PCG64(7)).standard_normal((4, 6)) / np.sqrt(6)
    assert observation[:4] == pytest.approx(matrix @ features, rel=1e-5)
    assert observation.shape == (PROJECTED.width,) == (4 + SIGNALS_WIDTH,)


def test_the_projection_is_the_same_on_every_machine() -> None:
    """Another numpy with another stream would show stored policies scrambled observations."""
    features = np.array([1, 0, 0, 0, 0, 0], np.float32)
    observation = ObservationBuilder(PROJECTED).build(features, SIGNALS)
    drawn = np.array([0.0012301533574825742, 0.060143602597438485, 0.10541424899789856, -1.901222739800844])
    assert observation[:4] == pytest.approx(
        drawn * np.sqrt(2) / np.sqrt(6), rel=1e-5
    )  # 1 / root mean square is sqrt(2)


@pytest.mark.parametrize("schema", [FULL, PROJECTED])
def test_features_that_are_not_known_are_zeros(schema: ObservationSchema) -> None:
    builder = ObservationBuilder(schema)
    broken = np.ones(6, np.float32)
    broken[3] = np.nan
    overflown = np.full(6, np.inf, np.float32)
    for features in (None, np.zeros(6, np.float32), broken, overflown):
        observation = builder.build(features, SIGNALS)
        assert np.array_equal(observation[:-SIGNALS_WIDTH], np.zeros(schema.width - SIGNALS_WIDTH))
        assert np.array_equal(observation[-SIGNALS_WIDTH:], SIGNALS)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_huge_and_tiny_features_stay_finite(scale: float) -> None:
    features = (np.arange(1, 7) * scale).astype(np.float32)
    assert np.isfinite(ObservationBuilder(PROJECTED).build(features, SIGNALS)).all()


def test_an_observation_is_a_new_array_each_time() -> None:
    builder = ObservationBuilder(FULL)
    first = builder.build(np.ones(6, np.float32), SIGNALS)
    kept = first.copy()
    builder.build(np.full(6, 2, np.float32), SIGNALS * 0)
    assert np.array_equal(first, kept)


def test_the_fingerprint_changes_with_everything_that_changes_the_meaning() -> None:
    variants = {
        PROJECTED.fingerprint,
        replace(PROJECTED, feature_width=9).fingerprint,
        replace(PROJECTED, projection=5).fingerprint,
        replace(PROJECTED, projection=None).fingerprint,
        replace(PROJECTED, projection_seed=8).fingerprint,
        replace(PROJECTED, version=2).fingerprint,
        replace(PROJECTED, name="other").fingerprint,
    }
    assert len(variants) == 7
    assert replace(PROJECTED).fingerprint == PROJECTED.fingerprint


@pytest.mark.parametrize("schema", [FULL, PROJECTED])
def test_a_schema_survives_json(schema: ObservationSchema) -> None:
    assert ObservationSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize(
    "change",
    [
        {"width": 3},
        {"signals": ["something"]},
        {"fingerprint": "x"},
        {"feature_width": "6"},
        {"projection": 0},
        {"x": 1},
    ],
)
def test_a_schema_that_this_code_would_not_build_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"schema|projection"):
        ObservationSchema.from_dict(PROJECTED.to_dict() | change)


@pytest.mark.parametrize("width", [0, -3, 4])
def test_features_are_three_blocks(width: int) -> None:
    with pytest.raises(ValueError, match="multiple of 3"):
        ObservationSchema(feature_width=width)
