"""Weights in other layouts compute what `F.linear` computes, and let go of the memory that they replace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.heap import script_numbers
from torch import nn

from respsd.engine import packed_linear
from respsd.engine.packed_linear import PRODUCT_ROWS, PackedLinear, extra_bytes
from respsd.engine.target_weights import pack_linears

WIDE, NARROW = (96, 32), (32, 96)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 17, 70])
@pytest.mark.parametrize("shape", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"spare": False}], ids=str)
def test_the_product_is_the_same(rows, shape, dtype, options):
    generator = torch.Generator().manual_seed(1)
    weight, bias = (
        torch.randn(shape, generator=generator).to(dtype),
        torch.randn(shape[0], generator=generator).to(dtype),
    )
    x = torch.randn(2, rows, shape[1], generator=generator).to(dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for each in (bias, None):
        ours = PackedLinear(weight, each, **options)(x)
        torch.testing.assert_close(ours, F.linear(x, weight, each), atol=tolerance, rtol=tolerance)


def test_few_numbers_of_rows_reach_the_matrix_library_and_none_is_padded_by_half(monkeypatch):
    """It keeps a kernel for each of them and shape, for ever."""
    layer, taken = PackedLinear(torch.ones(WIDE)), []
    monkeypatch.setattr(layer, "_product", lambda x: taken.append(x.shape[0]) or x.new_zeros(x.shape[0], WIDE[0]))
    for rows in range(3, 2200):
        before = len(taken)
        assert layer(torch.zeros(rows, WIDE[1])).shape == (rows, WIDE[0])
        computed = sum(taken[before:])
        assert computed == rows if rows <= 16 else rows <= computed < 1.5 * rows
    assert {0, *taken} == set(PRODUCT_ROWS)  # a prompt's part that needs no logits has no rows for the head
    assert len(PRODUCT_ROWS) < 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_several_products_stay_in_order(dtype):
    x, weight = torch.randn(1, 2100, WIDE[1]).to(dtype), torch.randn(WIDE).to(dtype)
    torch.testing.assert_close(PackedLinear(weight)(x), F.linear(x, weight), atol=0.1, rtol=0.01)


MAKE_KERNELS = """
from respsd.engine.packed_linear import PackedLinear, make_kernels

layers = [PackedLinear(torch.ones(96, 32)), PackedLinear(torch.zeros(96, 32)), PackedLinear(torch.zeros(128, 32))]

def work():
    for rows in range(1, 1100):
        for layer in layers:
            layer(torch.zeros(1, rows, 32))

layers[0](torch.zeros(5, 32))
print(grown(lambda: make_kernels(layers)), grown(work))
"""


def test_kernels_are_made_at_once_and_none_is_left_to_be_made_later():
    made, later = script_numbers(MAKE_KERNELS)
    assert later < made / 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_is_the_same_bits_however_many_stand_beside_it(dtype):
    generator = torch.Generator().manual_seed(1)
    layer = PackedLinear(torch.randn(WIDE, generator=generator).to(dtype), exact=True)
    x = torch.randn(40, WIDE[1], generator=generator).to(dtype)
    for rows in (1, 7, 17, 25, 33):
        assert torch.equal(layer(x[:rows]), layer(x)[:rows]), rows


class Small(nn.Module):
    """An output layer tied to the embedding, a wide and a narrow layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, 32)
        self.up = nn.Linear(32, 128, bias=False)
        self.down = nn.Linear(128, 32)
        self.head = nn.Linear(32, 512, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(self.up(self.embedding(ids)).relu()))


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    return Small().requires_grad_(False)


@pytest.mark.parametrize("exact", [False, True])
def test_a_packed_model_computes_the_same_and_keeps_its_embedding(small, exact):
    ids = torch.tensor([[3, 500, 7, 7]])
    expected = small(ids)
    pack_linears(small, exact=exact)
    torch.testing.assert_close(small(ids), expected, atol=1e-4, rtol=1e-4)
    assert small.embedding.weight.shape == (512, 32)


def test_a_replaced_weight_is_let_go_and_growth_is_said(small):
    up, head = small.up.weight.nbytes, small.head.weight.nbytes
    assert (extra_bytes(small.up.weight), extra_bytes(small.down.weight)) == (up, 0)
    packing = pack_linears(small, exact=False)
    assert small.up.weight.numel() == 0
    assert small.down.weight.shape == (32, 128)  # narrow: stays as it is
    assert packing.layers == 2
    assert packing.extra_bytes == up + 2 * head  # the embedding stays beside two layouts


def test_second_layouts_keep_within_the_bound(small):
    head = small.head.weight.nbytes
    packing = pack_linears(small, exact=False, spare_bytes=head)
    assert packing.extra_bytes == 2 * head  # the widest first; the other has one layout, which replaces its weight
    assert pack_linears(Small().requires_grad_(False), exact=False, spare_bytes=0).extra_bytes == head


def test_where_the_library_lacks_packed_products_weights_stay(small, monkeypatch):
    monkeypatch.setattr(packed_linear, "_packs", lambda weight: False)
    expected = small(torch.tensor([[1, 2]]))
    packing = pack_linears(small, exact=False)
    assert (packing.layers, packing.extra_bytes) == (0, 0)
    assert torch.equal(small(torch.tensor([[1, 2]])), expected)
