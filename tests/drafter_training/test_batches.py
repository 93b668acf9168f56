"""Packing sequences into batches."""

from __future__ import annotations

import torch

from respsd.drafter_training.batches import Packer, shuffled, split_by_prompt
from respsd.drafter_training.feature_shards import SequenceFeatures, SequencePlace


class _Shard:
    """Ten sequences of eight tokens; the answer starts at 5."""

    def __init__(self) -> None:
        self.places = [SequencePlace(0, 8 * n, 8, 5, 7, 1000 * n) for n in range(10)]

    def read(self, place: SequencePlace) -> SequenceFeatures:
        tokens = torch.arange(place.start, place.start + 8)
        return SequenceFeatures(tokens, tokens[:, None].float(), tokens[:, None].float(), tokens, 5, place.label_end)


def test_rows_begin_with_the_answers_second_token() -> None:
    shard = _Shard()
    batch = Packer([shard], 100).load(shard.places[:2])  # type: ignore[list-item]  # a stand-in
    span = batch.spans[1]
    # Row 4 holds token 5, the answer's first, and predicts from position 5; the last position to predict from is 6.
    assert (span.start, span.first_row, span.end_row) == (8, 4, 6)
    assert batch.rows == 4
    assert batch.weight[:8].tolist() == [0, 0, 0, 0, 0, 1, 1, 0]
    assert batch.tokens.tolist() == list(range(16))


def test_prompts_are_trained_on_behind_what_all_have_in_common() -> None:
    shard = _Shard()
    batch = Packer([shard], 100, prompt_weight=0.5, common_prefix=2).load(shard.places[:1])  # type: ignore[list-item]
    assert batch.spans[0].first_row == 1
    assert batch.weight.tolist() == [0, 0, 0.5, 0.5, 0.5, 1, 1, 0]


def test_batches_keep_to_their_rows_and_lose_no_sequence() -> None:
    shard = _Shard()
    batches = Packer([shard], 5).pack(shard.places)  # type: ignore[list-item]
    assert [len(batch) for batch in batches] == [2] * 5  # two rows each
    assert [place for batch in batches for place in batch] == shard.places
    assert [len(batch) for batch in Packer([shard], 1).pack(shard.places)] == [1] * 10  # type: ignore[list-item]


def test_long_prompts_do_not_make_a_batch_larger_than_its_rows_allow() -> None:
    places = [SequencePlace(0, 0, 30, 28, 30, number) for number in range(4)]  # one row, thirty positions
    assert [len(batch) for batch in Packer([], 16).pack(places)] == [2, 2]  # 64 positions
    assert [len(batch) for batch in Packer([], 2).pack(places)] == [1] * 4


def test_sequences_without_a_row_are_left_out() -> None:
    place = SequencePlace(0, 0, 3, 2, 2, 0)  # a one-token answer: its only token comes from the prefill
    assert Packer([], 5).pack([place]) == []


def test_a_prompt_is_held_out_or_trained_on_never_both() -> None:
    shard = _Shard()
    training, held_out = split_by_prompt([shard], 0.3)  # type: ignore[list-item]
    assert [place.prompt_digest for place in held_out] == [0, 1000, 2000]
    assert len(training) == 7


def test_an_epochs_order_depends_on_seed_and_epoch_alone() -> None:
    places = _Shard().places
    assert shuffled(places, 1, 0) == shuffled(places, 1, 0)
    assert shuffled(places, 1, 0) != shuffled(places, 2, 0)
    assert shuffled(places, 1, 0) != shuffled(places, 1, 1)
    assert sorted(map(repr, shuffled(places, 1, 0))) == sorted(map(repr, places))
