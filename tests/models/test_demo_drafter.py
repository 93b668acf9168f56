"""The drafter that ships for the demo model: small, in the public format, made for that model, with a card."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig

from respsd.engine.checkpoint import load_drafter_checkpoint
from respsd.models.demo import demo_drafter

MEGABYTE = 1_000_000


def test_it_is_at_most_24_megabytes() -> None:
    size = sum(file.stat().st_size for file in demo_drafter().rglob("*") if file.is_file())
    assert 10 * MEGABYTE < size <= 24 * MEGABYTE


def test_it_loads_for_the_demo_model_in_bfloat16_and_is_finite(demo_model_dir: Path) -> None:
    target = AutoConfig.from_pretrained(demo_model_dir)
    checkpoint = load_drafter_checkpoint(
        demo_drafter(), target_vocab_size=target.vocab_size, target_hidden_size=target.hidden_size
    )
    assert checkpoint.aux_layers(target.num_hidden_layers) == (2, 15, 27)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.dtype == torch.bfloat16, name
        assert tensor.isfinite().all(), name


def test_its_card_says_what_it_was_made_of_and_under_which_licence() -> None:
    card = (demo_drafter() / "README.md").read_text()
    for word in ("SmolLM2-135M-Instruct", "Apache-2.0", "respsd drafter train", "tau", "curves.png"):
        assert word in card, word
