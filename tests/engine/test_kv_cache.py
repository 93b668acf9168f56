from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from respsd.engine.kv_cache import KvArena, KvLayout, KvPool, SequenceCache
from respsd.errors import Overloaded

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


def test_commit_moves_only_rows_that_are_not_in_place():
    cache = SequenceCache(LAYOUT, 8)
    fill(cache, 0, [1.0, 2.0, 3.0, 4.0])
    cache.commit([0, 1, 3])
    assert keys(cache) == [1.0, 2.0, 4.0]
    assert cache.data[0, 0, 0, 3, 0] == 4.0  # the row itself stays as scratch


def test_pool_counts_reservations_and_gives_them_back():
    pool = KvPool(10)
    slots = pool.reserve(6)
    assert pool.fits(4)
    assert not pool.fits(5)
    with pytest.raises(Overloaded, match="11 of 10"):
        pool.reserve(5)
    pool.release(slots)
    assert pool.reserved_tokens == 0


def test_a_range_is_free_slots_side_by_side():
    pool = KvPool(10)
    first, second, third = (pool.reserve(3) for _ in range(3))
    pool.release(first)
    pool.release(third)
    assert pool.reserved_tokens == 3
    assert not pool.fits(5)  # 7 are free, in two ranges
    pool.release(second)
    assert pool.reserve(10) == slice(0, 10)


@given(st.lists(st.one_of(st.integers(1, 9), st.just(None)), max_size=60), st.randoms(use_true_random=False))
def test_ranges_never_overlap_and_all_come_back(needs, choose):
    pool, held = KvPool(24), list[slice]()
    for need in needs:
        if need is None or not pool.fits(need):
            if held:
                pool.release(held.pop(choose.randrange(len(held))))
        else:
            held.append(pool.reserve(need))
        taken = [slot for slots in held for slot in range(slots.start, slots.stop)]
        assert len(taken) == len(set(taken)) == pool.reserved_tokens
        assert all(0 <= slot < 24 for slot in taken)
    for slots in held:
        pool.release(slots)
    assert pool.reserve(24) == slice(0, 24)


def test_caches_of_an_arena_share_one_buffer_and_no_slot():
    arena = KvArena(LAYOUT, 8)
    one, two = arena.cache(slice(0, 3)), arena.cache(slice(3, 8))
    fill(one, 0, [1.0, 2.0, 3.0])
    fill(two, 0, [4.0, 5.0])
    one.commit([0, 2])
    two.commit([1])
    assert (keys(one), keys(two)) == ([1.0, 3.0], [5.0])
    assert one.data.untyped_storage().data_ptr() == two.data.untyped_storage().data_ptr()
