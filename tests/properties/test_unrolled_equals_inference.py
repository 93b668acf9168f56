"""Training computes what inference will: the unrolled rows equal the engine's drafter on the same tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models, tiny

from respsd.drafter_training.batches import Span, TrainingBatch
from respsd.drafter_training.checkpoint_export import export_checkpoint
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.train_command import drafter_config
from respsd.drafter_training.unrolled import RowIndex, UnrolledDrafter
from respsd.engine.checkpoint import load_drafter_checkpoint
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import SequenceCache

DRAFT_VOCAB = 64
STEPS = 4


@pytest.fixture(scope="module", params=[None, tiny.HEADS], ids=["the target's kv heads", "one kv head a head"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[UnrolledDrafter, Drafter]:
    """A drafter in training with random weights, and its export loaded by the engine."""
    return _pair(tmp_path_factory.mktemp("unrolled"), request.param)


def _pair(folder: Path, kv_heads: int | None) -> tuple[UnrolledDrafter, Drafter]:
    torch.manual_seed(0)
    target = models.target()
    config = drafter_config(target.config, TrainOptions(draft_vocab=DRAFT_VOCAB, kv_heads=kv_heads))
    scale = torch.rand(3 * tiny.HIDDEN) * 5 + 0.1
    head, norm = torch.randn(DRAFT_VOCAB, tiny.HIDDEN), torch.rand(tiny.HIDDEN)
    unrolled = UnrolledDrafter(config, target.embedding, head, norm, scale)
    with torch.no_grad():
        for parameter in unrolled.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    export_checkpoint(unrolled, torch.arange(0, 2 * DRAFT_VOCAB, 2), folder, torch.float32)
    checkpoint = load_drafter_checkpoint(folder, target_vocab_size=tiny.VOCAB, target_hidden_size=tiny.HIDDEN)
    return unrolled, Drafter(checkpoint, target.embedding)


def _batch(lengths: list[int], starts: list[int]) -> TrainingBatch:
    total = sum(lengths)
    spans, start = [], 0
    for length, first_row in zip(lengths, starts, strict=True):
        spans.append(Span(start, length, min(first_row, length - 2), length - 1))
        start += length
    return TrainingBatch(
        tokens=torch.randint(0, tiny.VOCAB, (total,)),
        taps=torch.randn(total, 3 * tiny.HIDDEN),
        final=torch.randn(total, tiny.HIDDEN),
        best=torch.randint(0, tiny.VOCAB, (total,)),
        weight=torch.ones(total),
        spans=tuple(spans),
    )


def _inference(drafter: Drafter, batch: TrainingBatch, span: Span, row: int, steps: int) -> list[torch.Tensor]:
    """Outputs for the prefix that ends at `row`, then along the true tokens as a chain of a draft tree."""
    tokens = batch.tokens[span.start : span.start + span.length]
    taps = batch.taps[span.start : span.start + span.length]
    cache = SequenceCache(drafter.layout, span.length + steps)
    outputs = [drafter.extend(cache, tokens[1 : row + 2], taps[: row + 1])]
    for level in range(steps - 1):
        visible = torch.ones((1, level + 1), dtype=torch.bool)
        token = tokens[row + 2 + level][None]
        rotation = drafter.rotation(cache.length + level, 1)
        outputs.append(drafter.expand(cache, level, token, outputs[-1], rotation, visible))
    return outputs


def _assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to float32's rounding, which goes with the largest number of a row: sums over it cancel."""
    largest = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, atol=1e-5 * largest, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 14), min_size=1, max_size=3),
    starts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    seed=st.integers(0, 2**16),
)
def test_unrolled_rows_equal_the_inference_path(
    pair: tuple[UnrolledDrafter, Drafter], lengths: list[int], starts: list[int], seed: int
) -> None:
    unrolled, drafter = pair
    torch.manual_seed(seed)
    batch = _batch(lengths, starts[: len(lengths)])
    with torch.no_grad():
        outputs = unrolled(batch, STEPS)
        number = 0
        for span in batch.spans:
            for row in range(span.first_row, span.end_row):
                existing = min(STEPS, span.end_row - row)
                for step, expected in enumerate(_inference(drafter, batch, span, row, existing)):
                    _assert_equal(outputs[step][number : number + 1], expected)
                number += 1
        assert number <= len(outputs[0])
        outputs = [hidden[:number] for hidden in outputs]
        log_probs = (unrolled.normed(outputs[0]) @ unrolled.lm_head.weight.T).log_softmax(dim=-1)
        _assert_equal(log_probs, drafter.log_probs(outputs[0]))


@given(seed=st.integers(0, 2**16), length=st.integers(4, 12))
@settings(max_examples=10, deadline=None)
def test_a_sequence_does_not_feel_its_batch_mates(
    pair: tuple[UnrolledDrafter, Drafter], seed: int, length: int
) -> None:
    unrolled, _ = pair
    torch.manual_seed(seed)
    batch = _batch([length, 7], [1, 2])
    alone = dataclasses.replace(batch, spans=batch.spans[1:])
    with torch.no_grad():
        before, own = (span.end_row - span.first_row for span in batch.spans)
        for one, other in zip(unrolled(batch, STEPS), unrolled(alone, STEPS), strict=True):
            _assert_equal(one[before : before + own], other[:own])


def test_positions_name_token_and_label_of_each_step() -> None:
    index = RowIndex([Span(start=10, length=6, first_row=2, end_row=5)], torch.device("cpu"))
    assert index.context[:5].tolist() == [10, 11, 12, 13, 14]
    assert index.drafting[:3].tolist() == [2, 3, 4]
    positions, valid = index.positions(0)
    assert positions[:3].tolist() == [13, 14, 15]
    assert valid[:3].tolist() == [True, True, True]
    positions, valid = index.positions(2)
    assert positions[:3].tolist() == [15, 15, 15]
    assert valid[:3].tolist() == [True, False, False]


@given(counts=st.lists(st.integers(3, 400), min_size=1, max_size=4), step=st.integers(0, 3))
@settings(deadline=None)
def test_every_batch_has_one_of_few_sizes_and_its_padding_counts_nowhere(counts: list[int], step: int) -> None:
    spans = [Span(start=0, length=count, first_row=1, end_row=count - 1) for count in counts]
    index = RowIndex(spans, torch.device("cpu"))
    positions, valid = index.positions(step)
    rows = sum(counts) - 2 * len(counts)
    for tensor, filled in ((index.context, rows + len(counts)), (index.drafting, rows), (positions, rows)):
        assert len(tensor) % 256 == 0
        assert 0 <= len(tensor) - filled < 256
    assert not valid[rows:].any()
    assert valid[0] or step > 0
