"""Drafts a wide tree at every place of given answers, and notes how much of each answer smaller trees would have held.

The answers are the target's own greedy ones, so what a step at a place would accept is known beforehand: nothing has to
be verified, and every place can be looked at, not only those where the steps of one action happen to begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from respsd.calibration.replay import NEVER, AnswerRecord, Axes, Place, WideTree, replay
from respsd.clock import Clock
from respsd.engine.assembly import Models
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.target import Target, causal_rows
from respsd.engine.tree import grow

_CHUNK = 512
_TURN = 8
"""Places of one answer before it is the next one's turn, so that all kinds of text count alike when time is up."""
_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the target's greedy answer."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    ended: bool
    """The model ended it; else it was cut, and what would have followed is not known."""


@torch.inference_mode()
def record_answers(
    models: Models, answers: Sequence[Answer], axes: Axes, seconds: float, clock: Clock
) -> list[AnswerRecord]:
    """Records of the answers, as long as time allows; of each nearly the same number of places, where it has so many.

    :param axes: what to record; the widest and deepest tree is drafted
    """
    assert models.drafter is not None
    walkers = [_places(models.target, models.drafter, answer, axes) for answer in answers]
    records: list[list[Place]] = [[] for _ in answers]
    started = clock.monotonic_ns()
    unfinished = list(range(len(answers)))
    while unfinished:
        # On a machine so slow that time is up in the first round, the kinds of text that are missing matter more.
        limit = seconds if all(records) else _PATIENCE * seconds
        for number in list(unfinished):
            if any(records) and clock.monotonic_ns() - started >= limit * 1e9:
                return _stacked(records)
            turn = list(islice(walkers[number], _TURN))
            records[number] += turn
            if len(turn) < _TURN:
                unfinished.remove(number)
    return _stacked(records)


def _stacked(records: Sequence[Sequence[Place]]) -> list[AnswerRecord]:
    return [AnswerRecord.of(record) for record in records if record]


def _places(target: Target, drafter: Drafter, answer: Answer, axes: Axes) -> Iterator[Place]:
    """One place after the other, beginning where the first step of the answer would."""
    tokens = (*answer.prompt, *answer.output)
    features = _features(target, tokens)
    start, known = len(answer.prompt), len(tokens) - 1 - (0 if answer.ended else axes.depth + 1)
    cache = SequenceCache(drafter.layout, len(tokens) + max(1, axes.depth) * max(axes.top_ks))
    rows = torch.tensor(tokens, device=features.device)
    drafter.extend(cache, rows[1:start], features[: start - 1])
    for root in range(start, known):
        output = drafter.extend(cache, rows[root : root + 1], features[root - 1 : root])
        yield _place(drafter, cache, output, tokens[root + 1 : root + 2 + axes.depth], axes)


def _place(drafter: Drafter, cache: SequenceCache, output: Tensor, truth: Sequence[int], axes: Axes) -> Place:
    candidates = grow(drafter, cache, output, axes.depth, max(axes.top_ks))
    if not bool(torch.isfinite(candidates.log_probs).all()):  # such a step would run without its tree
        levels, top_ks = axes.depth + 1, len(axes.top_ks)
        return Place(
            np.full((top_ks, levels, levels), NEVER, np.int16),
            np.zeros((top_ks, axes.depth, len(axes.total_tokens)), np.int16),
        )
    width = min(max(axes.top_ks), drafter.config.draft_vocab_size)
    tree = WideTree(
        top_k=width,
        depth=axes.depth,
        tokens=drafter.draft_to_target[candidates.tokens].cpu().numpy(),
        log_probs=candidates.log_probs.double().cpu().numpy(),
        parents=candidates.parents.cpu().numpy(),
    )
    return replay(tree, truth, [min(top_k, width) for top_k in axes.top_ks], axes.total_tokens)


def _features(target: Target, tokens: Sequence[int]) -> Tensor:
    """The target's features at every position, [tokens, 3 * hidden]."""
    cache = SequenceCache(target.layout, len(tokens))
    parts = []
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        parts.append(target.forward([causal_rows(cache, chunk, scored=1)])[0].features)
        cache.commit(list(range(len(chunk))))
    return torch.cat(parts)
