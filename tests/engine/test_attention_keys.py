"""Where attention may be plain products it takes a round number of keys: what stands behind the last one is unseen."""

from __future__ import annotations

import pytest
import torch
from support.heap import script_numbers

from respsd.engine import attention
from respsd.engine.kv_cache import KvLayout, SequenceCache

CPU = torch.device("cpu")
GROUP, KV_HEADS, HEAD = 3, 2, 8


def attended(dtype: torch.dtype, capacity: int, prefix: int, visible: torch.Tensor | None) -> torch.Tensor:
    """Attention of new rows behind a prefix, in a cache that was full of NaN."""
    generator = torch.Generator().manual_seed(prefix)
    count = 1 if visible is None else visible.shape[0]
    cache = SequenceCache(KvLayout(1, KV_HEADS, HEAD, dtype, CPU), capacity)
    cache.data.fill_(float("nan"))
    keys, values = torch.randn(2, KV_HEADS, prefix + count, HEAD, generator=generator)
    query = torch.randn(GROUP * KV_HEADS, count, HEAD, generator=generator)
    cache.write(0, 0, keys[:, :prefix].to(dtype), values[:, :prefix].to(dtype))
    cache.advance(prefix)
    segment = attention.plain_segment(cache, slice(0, count), visible, GROUP)
    new = keys[:, prefix:].to(dtype), values[:, prefix:].to(dtype)
    found = segment.attend(0, query.to(dtype), *new, 0.3)
    assert cache.data[0, :, :, : prefix + count].isfinite().all()
    behind = torch.ones(1, 1).bool() if visible is None else visible
    seen = torch.cat((torch.ones(count, prefix).bool(), behind), dim=1)
    grouped = [tensor.double().repeat_interleave(GROUP, 0) for tensor in (keys, values)]
    scores = (query.double() @ grouped[0].transpose(1, 2)) * 0.3
    expected = (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ grouped[1]).transpose(0, 1)
    return (found.double() - expected).abs().max()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("rows", [1, 5, 150])
@pytest.mark.parametrize("products", [True, False])
def test_what_an_earlier_step_left_behind_the_rows_is_not_seen(dtype, tolerance, rows, products, monkeypatch):
    monkeypatch.setattr(attention, "_may_take_products", lambda _dtype, _device: products)
    monkeypatch.setattr(attention, "_PRODUCTS_FROM", 0)
    visible = None if rows == 1 else torch.ones(rows, rows).tril().bool()
    for prefix, capacity in ((1, 400), (60, 400), (63, 400), (200 - rows, 201)):  # the last has no room for more keys
        assert attended(dtype, capacity, prefix, visible) < tolerance, prefix


def test_keys_are_rounded_up_only_where_products_may_be_faster(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert [attention.keys_taken(n, torch.bfloat16, CPU) for n in (1, 64, 65, 700)] == [64, 64, 128, 704]
    for dtype, device in ((torch.float32, CPU), (torch.float16, CPU), (torch.bfloat16, torch.device("cuda"))):
        assert attention.keys_taken(700, dtype, device) == 700
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert attention.keys_taken(700, torch.bfloat16, CPU) == 700


LONGER_AND_LONGER = """
from respsd.engine import attention
from respsd.engine.kv_cache import KvLayout, SequenceCache

cache = SequenceCache(KvLayout(1, 3, 64, torch.bfloat16, torch.device("cpu")), 1024)
cache.data.fill_(0.5)
visible = torch.ones(16, 16).tril().bool()

def steps(first, last):
    for length in range(first, last):
        cache.length = length
        rows = torch.ones(3, 16, 64, dtype=torch.bfloat16)
        segment = attention.plain_segment(cache, slice(0, 16), visible, 3)
        segment.attend(0, torch.ones(9, 16, 64, dtype=torch.bfloat16), rows, rows, 0.3)

torch.cpu._is_amx_tile_supported = lambda: False
attention._PRODUCTS_FROM = 0
for first in range(64, 1000, 64):
    steps(first, first + 1)
print(grown(lambda: steps(64, 1000)))
"""


def test_a_context_that_grows_step_by_step_makes_no_kernel_for_each_length():
    """It came to 600 MB once."""
    (left,) = script_numbers(LONGER_AND_LONGER)
    assert left < 8 << 20
