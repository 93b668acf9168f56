"""The slots' keys and values: room for what runs now, and nothing lost when it changes."""

from __future__ import annotations

import pytest
import torch

from respsd.drafter_training.slot_attention import SlotCache
from respsd.engine.kv_cache import KvLayout
from respsd.errors import EngineFault

LAYOUT = KvLayout(layers=2, kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


def test_room_follows_the_longest_sequence_and_keeps_what_is_written() -> None:
    cache = SlotCache(LAYOUT, slots=3, capacity=400)
    assert cache.room == 64
    written = torch.randn(3, 1, 64, 4)
    cache.keys[1][:], cache.values[0][:] = written, -written

    cache.fit(65)
    assert cache.room == 128
    assert torch.equal(cache.keys[1][:, :, :64], written)
    assert torch.equal(cache.values[0][:, :, :64], -written)
    assert cache.keys[1][:, :, 64:].count_nonzero() == 0, "rows that nobody wrote stay finite under the mask"

    cache.fit(60)
    assert cache.room == 128, "one step of slack, or a length at the edge would copy at every step"
    cache.fit(330)
    assert cache.room == 384
    cache.fit(10)
    assert cache.room == 64
    assert torch.equal(cache.keys[1], written)


def test_a_sequence_over_the_capacity_is_refused() -> None:
    with pytest.raises(EngineFault, match="401 tokens does not fit slots of 400"):
        SlotCache(LAYOUT, slots=1, capacity=400).fit(401)


def test_no_change_of_room_takes_new_memory() -> None:
    cache = SlotCache(LAYOUT, slots=3, capacity=400)
    places = [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)]
    for longest in (400, 1, 200, 330):
        cache.fit(longest)
        assert [tensor.data_ptr() for tensor in (*cache.keys, *cache.values)] == places
        assert all(tensor.is_contiguous() for tensor in (*cache.keys, *cache.values))
