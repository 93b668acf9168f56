"""The optimiser: Muon for the layer's matrices, AdamW for norms and the head, one schedule for both.

Muon is momentum orthogonalised by Newton-Schulz steps; others report that it needs fewer tokens than AdamW for a
layer's matrices.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from respsd.drafter_training.muon import Float32Muon
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.unrolled import UnrolledDrafter


class DrafterOptimiser:
    """Steps the drafter's parameters; its state can be saved and set again exactly."""

    def __init__(self, drafter: UnrolledDrafter, options: TrainOptions, total_steps: int, *, half: bool) -> None:
        """:param half: whether products in bfloat16 are fast"""
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in drafter.named_parameters():
            (matrices if parameter.ndim == 2 and not name.startswith("lm_head") else others).append(parameter)
        self._parameters = [*matrices, *others]
        self._options = options
        self._total_steps = total_steps
        rate, decay = options.matrix_learning_rate, options.weight_decay
        muon = (
            torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            if half
            else Float32Muon(matrices, lr=rate, weight_decay=decay)
        )
        adamw = torch.optim.AdamW(others, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=decay)
        self._parts: Mapping[str, tuple[torch.optim.Optimizer, float]] = {
            "matrices": (muon, rate),
            "others": (adamw, options.learning_rate),
        }

    def step(self, number: int) -> float:
        """Apply the gradients as step `number` (from 0) and clear them; returns their norm before clipping."""
        norm = float(clip_grad_norm_(self._parameters, self._options.gradient_clip))
        factor = schedule(number, self._options.warmup, self._total_steps)
        for part, rate in self._parts.values():
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, object]:
        """Everything that the next step depends on."""
        return {name: part.state_dict() for name, (part, _) in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, dict[str, object]]) -> None:
        """Set a saved state."""
        for name, (part, _) in self._parts.items():
            part.load_state_dict(state[name])


def schedule(step: int, warmup: int, total: int) -> float:
    """Factor of the learning rate: rising in a line over the warm-up, then falling in a line to zero at the end."""
    warm = min(1.0, (step + 1) / (warmup + 1))
    return warm * max(0.0, (total - step) / max(1, total))


def parameter_count(module: nn.Module) -> int:
    """Trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters())
