from __future__ import annotations

import pytest
import torch

from respsd.engine.kv_cache import KvLayout, KvPool, SequenceCache
from respsd.errors import InvalidRequest, Overloaded

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))


def fill(cache: SequenceCache, start: int, values: list[float]) -> None:
    row = torch.tensor(values).view(1, -1, 1)
    for layer in range(LAYOUT.layers):
        cache.write(layer, start, row, row + 100)


def keys(cache: SequenceCache, layer: int = 0) -> list[float]:
    return cache.data[layer, 0, 0, : cache.length, 0].tolist()


def test_write_returns_everything_up_to_the_new_rows():
    cache = SequenceCache(LAYOUT, 8)
    fill(cache, 0, [1.0, 2.0])
    cache.commit([0, 1])
    row = torch.tensor([3.0]).view(1, 1, 1)
    seen_keys, seen_values = cache.write(0, cache.length, row, row + 100)
    assert seen_keys.flatten().tolist() == [1.0, 2.0, 3.0]
    assert seen_values.flatten().tolist() == [101.0, 102.0, 103.0]


def test_commit_compacts_the_accepted_path_in_order_on_every_layer():
    cache = SequenceCache(LAYOUT, 8)
    fill(cache, 0, [1.0, 2.0])
    cache.commit([0, 1])
    fill(cache, 2, [10.0, 11.0, 12.0, 13.0, 14.0])
    cache.commit([0, 2, 4])
    assert keys(cache, 0) == keys(cache, 1) == [1.0, 2.0, 10.0, 12.0, 14.0]
    assert cache.data[1, 1, 0, : cache.length, 0].tolist() == [101.0, 102.0, 110.0, 112.0, 114.0]


def test_rows_that_were_not_kept_are_overwritten():
    cache = SequenceCache(LAYOUT, 8)
    fill(cache, 0, [1.0, 2.0, 3.0])
    cache.commit([0])
    fill(cache, 1, [20.0])
    cache.commit([0])
    assert keys(cache) == [1.0, 20.0]


def test_pool_counts_reservations_and_gives_them_back():
    pool = KvPool(10)
    pool.reserve(6)
    assert pool.fits(4)
    assert not pool.fits(5)
    with pytest.raises(Overloaded, match="11 of 10"):
        pool.reserve(5)
    pool.release(6)
    assert pool.reserved_tokens == 0


def test_a_need_beyond_the_whole_budget_is_refused_with_the_limit():
    with pytest.raises(InvalidRequest, match=r"11.*at most 10 KV tokens"):
        KvPool(10).check_possible(11)
