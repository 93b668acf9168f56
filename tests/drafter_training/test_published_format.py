"""The export has the form of a checkpoint that the reference implementation loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support import models, tiny

from respsd.drafter_training.checkpoint_export import export_checkpoint
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.train_command import drafter_config
from respsd.drafter_training.unrolled import UnrolledDrafter

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "golden-a" / "draft"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    target = models.target()
    config = drafter_config(target.config, TrainOptions(draft_vocab=64))
    ones = torch.ones(3 * tiny.HIDDEN)
    drafter = UnrolledDrafter(config, target.embedding, torch.randn(64, tiny.HIDDEN), ones[: tiny.HIDDEN], ones)
    export_checkpoint(drafter, torch.arange(0, 128, 2), folder, torch.bfloat16)
    return folder


def _shapes(file: Path) -> dict[str, int]:
    with safe_open(file, framework="pt") as tensors:
        return {name: len(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference recordings are not here")
def test_it_has_the_tensors_and_settings_of_the_reference_drafter(exported: Path) -> None:
    assert _shapes(exported / "model.safetensors") == _shapes(REFERENCE / "model.safetensors")
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (exported, REFERENCE))
    optional = {"bias", "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "use_cache"}
    assert theirs.keys() - ours.keys() <= optional
    assert ours["architectures"] == theirs["architectures"]
    assert ours["num_hidden_layers"] == theirs["num_hidden_layers"] == 1
