"""Training batches: rows of several sequences packed side by side, in an order that a step's number determines."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.drafter_training.feature_shards import FeatureShard, SequencePlace

POSITIONS_PER_ROW = 4
"""Long prompts with short answers have many positions, each of which costs a row of labels, for few rows that draft."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a packed batch."""

    start: int
    """Its first position in the packed arrays."""
    length: int
    first_row: int
    """The first row (in the sequence's own count) that drafts; earlier ones only give keys and values."""
    end_row: int
    """Behind its last row."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Packed positions of several sequences, with which of their rows draft."""

    tokens: Tensor  # int64 [positions]
    taps: Tensor  # [positions, 3 * hidden]
    final: Tensor  # [positions, hidden]: the target's state before its head
    best: Tensor  # int64 [positions]: the target's most probable next token
    weight: Tensor  # float32 [positions]: what a prediction from the target's distribution at this position counts
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        """Rows that draft."""
        return sum(span.end_row - span.first_row for span in self.spans)

    def to(self, device: torch.device) -> TrainingBatch:
        """The batch on a device."""
        tensors = (self.tokens, self.taps, self.final, self.best, self.weight)
        tokens, taps, final, best, weight = (tensor.to(device, non_blocking=True) for tensor in tensors)
        return TrainingBatch(tokens, taps, final, best, weight, self.spans)


@dataclass(frozen=True, slots=True)
class Packer:
    """Packs sequences on disk into batches."""

    shards: Sequence[FeatureShard]
    rows_per_batch: int
    """Drafting rows of a batch, which set its cost and its memory; it has at most `POSITIONS_PER_ROW` times as many
    positions, or one sequence."""
    prompt_weight: float = 0.0
    """What predictions inside prompts count; at 0 their rows do not draft."""
    common_prefix: int = 0
    """Tokens at the beginning of every prompt (a system message, say), never predicted."""

    def pack(self, places: Iterable[SequencePlace]) -> list[list[SequencePlace]]:
        """Batches in the sequences' order; those without a row that drafts are left out."""
        batches: list[list[SequencePlace]] = []
        rows_left = positions_left = 0
        for place in places:
            rows = self._rows(place)
            if rows == 0:
                continue
            if not batches or rows > rows_left or place.length > positions_left:
                batches.append([])
                rows_left, positions_left = self.rows_per_batch, POSITIONS_PER_ROW * self.rows_per_batch
            batches[-1].append(place)
            rows_left -= rows
            positions_left -= place.length
        return batches

    def load(self, places: Sequence[SequencePlace]) -> TrainingBatch:
        """Read a batch from the shards."""
        features = [self.shards[place.shard].read(place) for place in places]
        spans, start = [], 0
        for place in places:
            spans.append(Span(start, place.length, self._first_row(place), place.label_end - 1))
            start += place.length
        return TrainingBatch(
            tokens=torch.cat([one.tokens for one in features]),
            taps=torch.cat([one.taps for one in features]),
            final=torch.cat([one.final for one in features]),
            best=torch.cat([one.best for one in features]),
            weight=torch.cat([self._weights(place) for place in places]),
            spans=tuple(spans),
        )

    def _first_row(self, place: SequencePlace) -> int:
        """Row t predicts from position t + 1, so row answer_start - 1 drafts the answer's second token.

        Its first token is never drafted: it comes from the prefill.
        """
        if self.prompt_weight > 0:
            return max(0, min(self.common_prefix, place.answer_start) - 1)
        return place.answer_start - 1

    def _rows(self, place: SequencePlace) -> int:
        return max(0, place.label_end - 1 - self._first_row(place))

    def _weights(self, place: SequencePlace) -> Tensor:
        weights = torch.ones(place.length)
        weights[: place.answer_start] = self.prompt_weight
        weights[: self._first_row(place) + 1] = 0.0
        weights[place.label_end :] = 0.0
        return weights


def split_by_prompt(shards: Sequence[FeatureShard], held_out: float) -> tuple[list[SequencePlace], list[SequencePlace]]:
    """Sequences to train on, and a share of about `held_out` that is never trained on; a prompt is wholly in one."""
    training: list[SequencePlace] = []
    kept: list[SequencePlace] = []
    for shard in shards:
        for place in shard.places:
            (kept if place.prompt_digest % 10_000 < held_out * 10_000 else training).append(place)
    return training, kept


def shuffled(places: Sequence[SequencePlace], epoch: int, seed: int) -> list[SequencePlace]:
    """An epoch's order, the same for the same number and seed."""
    order = list(places)
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order
