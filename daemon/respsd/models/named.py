"""The folders of the target and the drafter that settings name; the embedded demo model is one of the names."""

from __future__ import annotations

from pathlib import Path

from respsd.models.demo import demo_drafter, demo_model
from respsd.models.target import resolve_checkpoint
from respsd.settings import DEMO, Settings


def target_folder(settings: Settings) -> Path:
    """Raises CheckpointError or DemoModelUnavailable; the demo model and hub ids may be downloaded first."""
    return demo_model(settings.demo_source) if settings.target == DEMO else resolve_checkpoint(settings.target)


def drafter_folder(settings: Settings) -> Path | None:
    """None where the target is served without one; raises CheckpointError."""
    if settings.drafter_name is None:
        return None
    return demo_drafter() if settings.drafter_name == DEMO else resolve_checkpoint(settings.drafter_name)
