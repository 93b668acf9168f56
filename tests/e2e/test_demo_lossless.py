"""Losslessness on the demo model with its own drafter, float32: a small part of `respsd doctor --verify-lossless`."""

from __future__ import annotations

import pytest
import torch

from respsd.bench.lossless import verify_lossless
from respsd.bench.questions import built_in
from respsd.control.action import EAGLE3, Action
from respsd.engine.assembly import load_models
from respsd.models.demo import demo_drafter


@pytest.mark.demo
@pytest.mark.slow
def test_trees_change_no_token_of_the_demo_model(demo_model_dir):
    models = load_models(demo_model_dir, demo_drafter(), dtype=torch.float32, device=torch.device("cpu"))
    prompts = built_in(models.tokenizer, 2).prompts
    report = verify_lossless(models, prompts, 24, (Action(4, 1, 2), Action(16, 4, 4), EAGLE3))
    assert report.compared == 12
    assert report.differences == ()
