"""Muon in float32, for machines that have no fast bfloat16.

torch's Muon computes in bfloat16 whatever it is given. A processor without such products emulates them: one step of the
demo model's drafter took 60 s on two cores of a Zen 3, which float32 does in about 1 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_RMS_OF_ADAMW = 0.2
"""Root mean square of an update, as AdamW's usually have (Moonlight, arXiv 2502.16982, section 2.2)."""


class Float32Muon(torch.optim.Muon):
    """torch's Muon but for the number format: the same update, and a state that either can go on from."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # gradients are there already
        """Apply the gradients."""
        del closure
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                mean = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(mean, group["momentum"])  # Nesterov's
                update = orthogonalised(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * _RMS_OF_ADAMW * math.sqrt(max(matrix.shape)))


def orthogonalised(
    matrix: Tensor,  # [rows, columns]
    coefficients: tuple[float, float, float],
    rounds: int,
    eps: float,
) -> Tensor:
    """The matrix with its singular values brought near one, by Newton-Schulz rounds.

    A round sends a singular value s to a*s + b*s^3 + c*s^5, so that the matrix is never decomposed.

    :param coefficients: a, b and c
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if is_tall else matrix  # the Gram matrix is that of the shorter side
    wide = wide / wide.norm().clamp_min(eps)  # no singular value above one
    for _ in range(rounds):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide
