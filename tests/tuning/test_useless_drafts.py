"""Where drafts are never right, speculation is switched off: by calibration at once, by learning soon.

(sgl-project/sglang#4759, #6783: speculation that is slower than none stays on.)
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import models as tiny_models
from support import tiny
from support.engines import load_tiny

from respsd.calibration.measure import calibrate
from respsd.clock import SystemClock
from respsd.control.action import OFF, Action, ActionTable
from respsd.settings_learning import LearningSettings
from respsd.tuning.environment import Environment, TextKind
from respsd.tuning.simulation import simulate

TABLE = ActionTable((OFF, Action(8, 3, 3), Action(16, 4, 4), Action(60, 7, 10)))
HOPELESS = TextKind("hopeless", 0.0, 0.0)


@pytest.mark.slow
def test_calibration_of_a_drafter_with_random_weights_makes_plain_decoding_the_baseline(tmp_path: Path) -> None:
    folder = tiny.write_drafter(tmp_path / "drafter", tiny_models.folders()[0])
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = torch.randn(tensor.shape, generator=generator)
    save_file(weights, folder / "model.safetensors")
    calibration = calibrate(load_tiny(folder), TABLE, seconds=2.0, max_running=1, clock=SystemClock())
    assert calibration.baseline(TABLE).is_off


@pytest.mark.slow
def test_learning_settles_on_plain_decoding() -> None:
    environment = Environment(TABLE, (HOPELESS,))
    assert environment.best_constant().is_off
    result = simulate(environment, LearningSettings(), windows=1500, seed=0)
    assert result.greedy_actions == {"hopeless": "off"}
    assert result.greedy == pytest.approx(result.optimum)
