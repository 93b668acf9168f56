"""What an engine's measurements are comparable by: short hashes that are stored beside them."""

from __future__ import annotations

import hashlib

from respsd.engine.api import ModelInfo
from respsd.settings import Settings

_DIGITS = 16


def settings_hash(settings: Settings) -> str:
    """Rows of daemons whose engines differ in speed are not comparable. Rows name their models themselves."""
    return _hash(_speed_settings(settings))


def engine_hash(settings: Settings, models: ModelInfo) -> str:
    """The settings with the models, their number format and device: a comparison that began on others tells nothing."""
    parts = (models.target, models.drafter, models.dtype, models.device)
    return _hash(_speed_settings(settings) + repr(parts))


def _speed_settings(settings: Settings) -> str:
    return settings.engine.model_dump_json() + settings.control.model_dump_json()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
