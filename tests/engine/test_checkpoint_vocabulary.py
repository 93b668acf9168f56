"""The draft vocabulary's map: offsets, checked for range, uniqueness and agreement with the mask (bug report 18)."""

from __future__ import annotations

import pytest
import torch
from support.drafters import mask, offsets

from respsd.engine.vocabulary_map import draft_to_target_ids
from respsd.errors import CheckpointError

IDS = [0, 3, 4, 9]


def ids(d2t, t2d=None, draft=4, vocab=10):
    return draft_to_target_ids(d2t, t2d, draft, vocab, "model.safetensors").tolist()


def test_offsets_are_added_to_the_draft_id():
    assert offsets(IDS).tolist() == [0, 2, 2, 6]
    assert ids(offsets(IDS)) == IDS
    assert ids(offsets(IDS), mask(IDS, 10)) == IDS
    assert ids(offsets(IDS).to(torch.int32), mask(IDS, 10).to(torch.uint8)) == IDS


def test_order_of_draft_ids_is_free():
    assert ids(offsets([9, 0, 4, 3]), mask(IDS, 10)) == [9, 0, 4, 3]


def test_absent_map_with_equal_vocabularies_is_the_identity():
    assert ids(None, draft=5, vocab=5) == [0, 1, 2, 3, 4]
    assert ids(None, torch.ones(5, dtype=torch.bool), draft=5, vocab=5) == [0, 1, 2, 3, 4]


def test_zero_offsets_with_equal_vocabularies_are_the_identity():
    assert ids(torch.zeros(5, dtype=torch.int64), draft=5, vocab=5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("d2t", "t2d", "fault"),
    [
        (None, None, "d2t is missing, and the draft vocabulary has 4 of 10 tokens"),
        (torch.zeros(4, dtype=torch.int64), None, "d2t is all zeros"),
        (torch.zeros(4, dtype=torch.int64), mask([0, 1, 2, 3], 10), "d2t is all zeros"),
        (torch.tensor([0, 2, 2, 7]), None, r"d2t\[3\] = 7, an offset, maps draft id 3 to 10, outside 0..9"),
        (torch.tensor([-1, 2, 2, 6]), None, "outside 0..9"),
        (torch.tensor([3, 2, 2, 6]), None, "maps 2 draft ids to target id 3"),
        (torch.tensor(IDS), None, "outside 0..9"),  # target ids where offsets belong
        (offsets(IDS), mask([0, 3, 5, 9], 10), "contradict each other on 2 ids; d2t has 4, t2d has not"),
        (offsets(IDS), mask([0, 2, 3, 4, 9], 10), "t2d has 2, d2t has not"),
        (offsets(IDS), mask(IDS, 11), r"t2d is torch.bool \(11,\)"),
        (offsets(IDS), mask(IDS, 10).float(), "t2d is torch.float32"),
        (offsets(IDS)[:3], None, r"d2t is torch.int64 \(3,\)"),
        (offsets(IDS).float(), None, "d2t is torch.float32"),
    ],
)
def test_wrong_maps_are_refused_with_file_and_fault(d2t, t2d, fault):
    with pytest.raises(CheckpointError, match=fault) as caught:
        ids(d2t, t2d)
    assert caught.value.file == "model.safetensors"


def test_draft_vocabulary_larger_than_the_targets_is_refused():
    with pytest.raises(CheckpointError, match="draft vocabulary 11 exceeds the vocabulary 10"):
        ids(None, draft=11, vocab=10)
