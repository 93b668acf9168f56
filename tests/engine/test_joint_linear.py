"""Query, key and value projections computed as one product are what each would compute."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from respsd.engine.joint_linear import JointLinear, join_projections


class Attention(nn.Module):
    def __init__(self, *, bias: bool = False, key_inputs: int = 16) -> None:
        super().__init__()
        self.q_proj = nn.Linear(16, 24, bias=bias)
        self.k_proj = nn.Linear(key_inputs, 8, bias=bias)
        self.v_proj = nn.Linear(16, 8, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


@pytest.mark.parametrize("bias", [False, True])
def test_each_layer_gives_what_it_gave_for_every_new_input(bias):
    own = nn.Sequential(*(Attention(bias=bias) for _ in range(2))).requires_grad_(False)
    joint = copy.deepcopy(own)
    assert len(join_projections(joint)) == 6
    for rows in (1, 5, 1):
        x = torch.randn(1, rows, 16)
        for one, other in zip(own, joint, strict=True):
            torch.testing.assert_close(other(x), one(x))
            torch.testing.assert_close(other.v_proj(x + 1), one.v_proj(x + 1))  # out of turn


def test_outputs_that_were_taken_are_not_kept():
    layers = list(Attention().requires_grad_(False).children())
    joint = JointLinear(layers)
    x = torch.randn(1, 2, 16)
    for number, layer in enumerate(layers):
        expected = layer(x)
        for _ in range(2):  # asked again, it computes again
            torch.testing.assert_close(joint.share(number)(x), expected)
    another = torch.randn(1, 2, 16)
    for number in range(3):
        joint.share(number)(another)
    assert (joint._input, joint._outputs) == (None, {})


def test_weights_are_let_go():
    attention = Attention().requires_grad_(False)
    assert all(layer.weight.numel() == 0 for layer in join_projections(attention))


def test_layers_of_different_inputs_are_left_alone():
    assert join_projections(Attention(key_inputs=12).requires_grad_(False)) == []


def test_a_model_without_projections_is_left_alone():
    assert join_projections(nn.Sequential(nn.Linear(4, 4))) == []
