"""The optimiser's products are in float32 where bfloat16 is slow, and nothing else is different."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from respsd.drafter_training.muon import Float32Muon, orthogonalised

COEFFICIENTS = (3.4445, -4.775, 2.0315)
ROUNDS = 5
EPS = 1e-7
OPTIONS = {"lr": 0.01, "weight_decay": 0.02}


def rounds_of(value: float) -> float:
    """What the rounds make of one singular value."""
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        value = a * value + b * value**3 + c * value**5
    return value


def matrices(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((24, 8), (8, 24), (16, 16))]


def trained(optimiser: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    """The matrices after these steps, each with gradients of its own."""
    parameters = optimiser.param_groups[0]["params"]
    for step in steps:
        for parameter, gradient in zip(parameters, matrices(100 + step), strict=True):
            parameter.grad = gradient
        optimiser.step()
    return [parameter.detach().clone() for parameter in parameters]


def ours() -> Float32Muon:
    return Float32Muon([nn.Parameter(matrix) for matrix in matrices()], **OPTIONS)


def torchs() -> torch.optim.Muon:
    parameters = [nn.Parameter(matrix) for matrix in matrices()]
    return torch.optim.Muon(parameters, **OPTIONS, adjust_lr_fn="match_rms_adamw")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_singular_values_go_where_the_polynomial_sends_them_and_the_directions_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    sent = torch.tensor([rounds_of(float(value / values.norm())) for value in values], dtype=torch.float64)
    expected = (left * sent) @ right
    found = orthogonalised(matrix, COEFFICIENTS, ROUNDS, EPS)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert 0.5 < float(sent.min()) < float(sent.max()) < 1.5


def test_a_step_by_hand() -> None:
    """The Frobenius norm makes of [[3, 0], [0, 4]] the singular values 0.6 and 0.8, whatever its scale."""
    parameter = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    optimiser = Float32Muon([parameter], lr=0.1, weight_decay=0.5)
    parameter.grad = torch.tensor([[3.0, 0.0], [0.0, -4.0]])
    optimiser.step()
    size = 0.1 * 0.2 * math.sqrt(2)
    update = torch.tensor([[rounds_of(0.6), 0.0], [0.0, -rounds_of(0.8)]])
    assert torch.allclose(parameter, torch.tensor([[0.95, 1.9], [2.85, 3.8]]) - size * update, atol=1e-6)


def test_it_takes_torchs_steps_but_for_the_rounding() -> None:
    moved = [(mine - start).norm() for mine, start in zip(trained(ours(), range(6)), matrices(), strict=True)]
    for mine, other, distance in zip(trained(ours(), range(6)), trained(torchs(), range(6)), moved, strict=True):
        assert float((mine - other).norm()) < 0.03 * float(distance)
        assert float((mine - other).norm()) > 0


@pytest.mark.parametrize(("begin", "go_on"), [(ours, torchs), (torchs, ours)])
def test_either_goes_on_from_the_others_state(begin, go_on) -> None:
    """A run that is resumed on another kind of machine keeps its momentum."""
    first, whole = begin(), trained(ours(), range(6))
    middle = trained(first, range(3))
    second = go_on()
    second.load_state_dict(deepcopy(first.state_dict()))
    for parameter, matrix in zip(second.param_groups[0]["params"], middle, strict=True):
        parameter.data = matrix
    for found, expected, start in zip(trained(second, range(3, 6)), whole, matrices(), strict=True):
        assert float((found - expected).norm()) < 0.03 * float((expected - start).norm())


def test_what_has_no_gradient_stays() -> None:
    optimiser = ours()
    optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(optimiser.param_groups[0]["params"], matrices(), strict=True))
