"""Fixtures for things outside the repository: shared reference data and the demo model."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch is imported, and for the daemons that tests start: on models this small a second thread only waits for
# the first, and on a busy machine each such wait costs milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from respsd.errors import DemoModelUnavailable
from respsd.models.demo import demo_model

# A slow machine is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder `shared` beside the project: reference decodes, questions, a drafter for the demo model."""
    folder = PROJECT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder.name} folder beside the project")
    return folder


@pytest.fixture(scope="session")
def reference_dir(shared_dir: Path) -> Path:
    """Golden folders of the reference implementation, each with target, drafter, trees and decodes."""
    folder = shared_dir / "reference"
    if not folder.is_dir():
        pytest.skip("the shared folder holds no reference decodes")
    return folder


@pytest.fixture(scope="session")
def demo_model_dir() -> Path:
    """The demo model's folder, as `respsd serve --demo` takes it; in CI its absence is a failure."""
    try:
        return demo_model()
    except DemoModelUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
