"""Exact mode: what a row gives does not depend on the rows beside it, to the bit, in every number format."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.engines import plain, request, running
from torch import Tensor

from respsd.control.action import Action
from respsd.engine.assembly import Models, load_models
from respsd.engine.exact_attention import exact_segment
from respsd.engine.exactness import BoundedRows, RowRange, row_range
from respsd.engine.kv_cache import KvLayout, SequenceCache
from respsd.engine.loop import LoopLimits
from respsd.engine.target import Rows, Target, causal_rows
from respsd.engine.tree import ancestors

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
DTYPES = [torch.float32, torch.bfloat16]


class Sequence:
    """Random queries, keys and values by absolute position, as a layer would see them."""

    def __init__(self, length: int, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(HEADS, length, HEAD_DIM, generator=generator).to(dtype)
        self.keys = torch.randn(KV_HEADS, length, HEAD_DIM, generator=generator).to(dtype)
        self.values = torch.randn(KV_HEADS, length, HEAD_DIM, generator=generator).to(dtype)
        self.dtype = dtype

    def cache(self, prefix: int, room: int) -> SequenceCache:
        layout = KvLayout(1, KV_HEADS, HEAD_DIM, self.dtype, torch.device("cpu"))
        cache = SequenceCache(layout, prefix + room)
        cache.data.fill_(float("nan"))  # what was never written must not matter
        cache.write(0, 0, self.keys[:, :prefix], self.values[:, :prefix])
        cache.length = prefix
        return cache

    def run(self, prefix: int, positions: list[int], visible: Tensor | None) -> Tensor:
        """Attend from rows of these positions behind a prefix; [rows, heads, head_dim]."""
        segment = exact_segment(self.cache(prefix, len(positions)), slice(0, len(positions)), visible)
        return segment.attend(0, *(each[:, positions] for each in (self.query, self.keys, self.values)), 0.35)


def by_definition(sequence: Sequence, position: int) -> Tensor:
    """In float64; [heads, head_dim]."""
    group = HEADS // KV_HEADS
    keys, values = (
        each[:, : position + 1].double().repeat_interleave(group, 0) for each in (sequence.keys, sequence.values)
    )
    scores = (keys @ sequence.query[:, position].double()[..., None])[..., 0] * 0.35
    return (scores.softmax(-1)[:, None] @ values)[:, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("position", [0, 1, 62, 63, 64, 65, 130, 255, 256])
def test_a_row_alone_attends_to_all_positions_up_to_its_own(dtype, position):
    sequence = Sequence(position + 1, dtype, seed=position)
    ours = sequence.run(position, [position], None)[0]
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.double(), by_definition(sequence, position), atol=tolerance, rtol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    prefix=st.integers(0, 200),
    parents=st.integers(1, 40).flatmap(lambda n: st.tuples(*(st.integers(0, max(0, i - 1)) for i in range(n)))),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_a_node_of_a_tree_gives_the_bits_of_plain_decoding_along_its_path(prefix, parents, dtype, seed):
    """The cache holds other nodes between those of the path; plain decoding has them side by side."""
    tree = Sequence(prefix + len(parents), dtype, seed)
    rows = list(range(prefix, prefix + len(parents)))
    verified = tree.run(prefix, rows, ancestors(torch.tensor(parents), len(parents)))
    node = random.Random(seed).randrange(len(parents))
    path = [node]
    while path[0]:
        path.insert(0, parents[path[0]])
    order = [*range(prefix), *(prefix + each for each in path)]
    decoding = Sequence(0, dtype, 0)
    decoding.query, decoding.keys, decoding.values = (each[:, order] for each in (tree.query, tree.keys, tree.values))
    last = len(order) - 1
    assert torch.equal(decoding.run(last, [last], None)[0], verified[node])


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 200), cut=st.integers(0, 199), dtype=st.sampled_from(DTYPES))
def test_a_prompt_in_any_chunks_gives_the_same_bits(length, cut, dtype):
    cut = min(cut, length - 1)
    sequence = Sequence(length, dtype, seed=length)
    whole = sequence.run(0, list(range(length)), None)
    assert torch.equal(sequence.run(cut, list(range(cut, length)), None), whole[cut:])


def test_an_independent_product_may_take_any_number_of_rows():
    weight = torch.randn(24, 16)
    found = row_range(lambda x: (x[:, None] * weight).sum(-1), 16, torch.float32, torch.device("cpu"))
    assert found == RowRange(1, 64)


@pytest.mark.parametrize(("limit", "widest"), [(1, RowRange(8, 8)), (4, RowRange(8, 8)), (16, RowRange(1, 16))])
def test_rows_beyond_which_a_product_changes_are_found_and_avoided(limit, widest):
    """Past `limit` rows this one's sums go with their number, as those of a library that cuts work up would."""
    weight = torch.randn(24, 16)

    def product(x: Tensor) -> Tensor:
        sums = (x[:, None] * weight).sum(-1)
        return sums if x.shape[0] <= limit else sums * (1 + 1e-6 * x.shape[0])

    bounds = row_range(product, 16, torch.float32, torch.device("cpu"))
    assert bounds == widest
    x = torch.randn(50, 16)
    bounded = BoundedRows(product, bounds)
    assert torch.equal(bounded(x), torch.cat([bounded(row) for row in x.split(1)]))


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_rows_up_to_which_a_product_has_another_kernel_are_found_and_padded(limit):
    """Up to `limit` rows this one's sums are others, as those of a library with a kernel for single rows would be."""
    weight = torch.randn(24, 16)

    def product(x: Tensor) -> Tensor:
        sums = (x[:, None] * weight).sum(-1)
        return sums if x.shape[0] > limit else sums * (1 + 1e-6)

    bounds = row_range(product, 16, torch.float32, torch.device("cpu"))
    assert bounds == RowRange(limit + 1, 64)
    x = torch.randn(66, 16)
    bounded = BoundedRows(product, bounds)
    assert torch.equal(bounded(x), torch.cat([bounded(row) for row in x.split(1)]))


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def exact(request: pytest.FixtureRequest) -> Models:
    return load_models(*models.folders(), dtype=request.param, device=models.CPU, exact=True)


@torch.inference_mode()
def test_logits_and_features_of_a_forward_do_not_depend_on_what_is_in_it(exact):
    target: Target = exact.target
    draw = random.Random(2)
    prompt = [draw.randrange(3, 280) for _ in range(70)]

    def prefix() -> SequenceCache:
        cache = SequenceCache(target.layout, 128)
        target.forward([causal_rows(cache, prompt, scored=0)])
        cache.commit(list(range(len(prompt))))
        return cache

    parents = torch.tensor([0, 0, 0, 1, 1, 3, 5])
    depths = torch.tensor([0, 1, 1, 2, 2, 3, 4])
    tokens = torch.tensor([9, 50, 51, 52, 53, 54, 55])
    tree = Rows(prefix(), tokens, depths + len(prompt), ancestors(parents, 4), torch.arange(7))
    other = causal_rows(SequenceCache(target.layout, 64), prompt[:40], scored=3)
    verified = target.forward([other, tree])[1]
    decoding = prefix()
    for node in (0, 1, 3, 5, 6):  # down the path
        output = target.forward([causal_rows(decoding, [int(tokens[node])], scored=1)])[0]
        decoding.commit([0])
        assert torch.equal(output.logits[0], verified.logits[node])
        assert torch.equal(output.features[0], verified.features[node])


def test_output_is_plain_decodings_in_every_number_format(exact):
    prompts = [[1, 40, 17, 99, 254, 3, 60], [1, 200], [1, *range(70, 150)]]
    actions = [Action(4, 1, 2), Action(16, 4, 4), Action(60, 7, 10), Action(128, 8, 32)]
    with running(exact, limits=LoopLimits(prefill_chunk=31)) as rig:
        for prompt in prompts:
            expected = rig.generate(plain(prompt, 40)).token_ids
            for action in actions:
                assert rig.generate(request(prompt, 40, action=action)).token_ids == expected, action
