from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from respsd.engine.api import ModelInfo
from respsd.engine_identity import engine_hash, settings_hash
from respsd.settings import EngineSettings, Settings

MODELS = ModelInfo("target", "drafter", "float32", "cpu", 100, 256, (0,))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"target": "other"}, {"drafter": "other"}, {"drafter": None}, {"dtype": "bfloat16"}, {"device": "cuda"}],
    ids=str,
)
def test_other_models_formats_or_devices_are_another_engine(settings: Settings, change: dict[str, str | None]) -> None:
    same = engine_hash(settings, replace(MODELS))
    assert engine_hash(settings, MODELS) == same
    assert engine_hash(settings, replace(MODELS, **change)) != same  # type: ignore[arg-type]


def test_names_that_run_together_alike_are_told_apart(settings: Settings) -> None:
    one, other = replace(MODELS, target="ab", drafter="c"), replace(MODELS, target="a", drafter="bc")
    assert engine_hash(settings, one) != engine_hash(settings, other)


def test_settings_that_change_an_engines_speed_are_in_both(settings: Settings, tmp_path: Path) -> None:
    others = Settings(state_dir=tmp_path, engine=EngineSettings(max_running=settings.engine.max_running + 1))
    assert settings_hash(settings) != settings_hash(others)
    assert engine_hash(settings, MODELS) != engine_hash(others, MODELS)
