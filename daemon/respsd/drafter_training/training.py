"""Training a drafter on cached target features."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from respsd.clock import Clock
from respsd.drafter_training.batches import Packer, TrainingBatch, shuffled
from respsd.drafter_training.draft_loss import StepLoss, TargetLabels, step_loss, target_labels
from respsd.drafter_training.feature_shards import SequencePlace
from respsd.drafter_training.optimiser import DrafterOptimiser
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.run_state import Evaluation, RunState, Tally
from respsd.drafter_training.unrolled import RowIndex, UnrolledDrafter
from respsd.errors import EngineFault
from respsd.telemetry.progress import ProgressReport

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Labeller:
    """The target's head over the draft vocabulary, which turns its final states into labels."""

    head: Tensor  # [draft vocab, hidden], in the dtype of the cached states
    to_draft: Tensor  # int64 [vocab], -1 where a token has no draft id

    def __call__(self, batch: TrainingBatch) -> TargetLabels:
        """Labels at every position of the batch."""
        return target_labels(batch.final, batch.best, batch.weight, self.head, self.to_draft)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a run looks at itself, in optimiser steps."""

    evaluate_every: int = 100
    save_every: int = 50
    held_out_sequences: int = 96
    """Held-out sequences that an evaluation looks at, at most."""


class Trainer:
    """One run, from wherever its state file says it is."""

    def __init__(
        self,
        drafter: UnrolledDrafter,
        labeller: Labeller,
        packer: Packer,
        training: Sequence[SequencePlace],
        held_out: Sequence[SequencePlace],
        options: TrainOptions,
        schedule: Schedule,
        state: RunState,
        clock: Clock,
    ) -> None:
        self._drafter = drafter
        self._labeller = labeller
        self._packer = packer
        self._training = training
        # Evaluated on answers only, so that curves compare whatever the training counts.
        self._answers_only = Packer(packer.shards, packer.rows_per_batch)
        self._held_out = self._answers_only.pack(held_out[: schedule.held_out_sequences])
        self._options = options
        self._schedule = schedule
        self._state = state
        self._clock = clock
        self._device = drafter.embedding.device
        self.total_steps = self._count_steps()
        # Features are in bfloat16 where the machine is fast in it.
        self._half = labeller.head.dtype != torch.float32
        self._optimiser = DrafterOptimiser(drafter, options, self.total_steps, half=self._half)

    def run(self, evaluated: Callable[[Sequence[Evaluation]], None]) -> Sequence[Evaluation]:
        """Train to the end; `evaluated` gets the curves after each evaluation. Returns them."""
        first, tally = self._state.load(self._drafter, self._optimiser)
        if first:
            log.info("training goes on", step=first, total=self.total_steps)
        with ProgressReport("training steps", self.total_steps, self._clock, done=first) as progress:
            for step, places in self._batches(first):
                loss = self._train_on(self._packer.load(places).to(self._device), step, tally)
                done = step + 1
                is_last = done == self.total_steps
                looks = is_last or done % self._schedule.evaluate_every == 0
                if looks:
                    self._evaluate(done, tally)
                if looks or done % self._schedule.save_every == 0:
                    self._state.save(done, self._drafter, self._optimiser, tally)
                if looks:  # what it writes may fail, on a full disk say, and loses no step any more
                    evaluated(tally.history)
                progress.advance(1, f"loss {loss:.3f}")
        return tally.history

    def _batches(self, first: int) -> Iterator[tuple[int, list[SequencePlace]]]:
        """Numbered batches from step `first` to the end, epoch after epoch."""
        step = epoch = 0
        while step < self.total_steps:
            for places in self._packer.pack(shuffled(self._training, epoch, self._options.seed)):
                if first <= step < self.total_steps:
                    yield step, places
                step += 1
            epoch += 1

    def _count_steps(self) -> int:
        whole = int(self._options.epochs)
        sizes = [
            len(self._packer.pack(shuffled(self._training, epoch, self._options.seed))) for epoch in range(whole + 1)
        ]
        return max(1, sum(sizes[:whole]) + math.ceil((self._options.epochs - whole) * sizes[whole]))

    def _train_on(self, batch: TrainingBatch, step: int, tally: Tally) -> float:
        losses = self._losses(batch)
        scale = float(batch.weight.sum().clamp_min(1.0))
        total = sum_of(losses, self._options.step_decay) / scale
        value = float(total.detach())
        if not math.isfinite(value):
            raise EngineFault(
                f"the loss is {value} at step {step}; lower the learning rates (the last checkpoint is kept)"
            )
        total.backward()
        self._optimiser.step(step)
        tally.loss += value
        tally.batches += 1
        tally.rows += batch.rows
        count_agreement(losses, tally.agreed, tally.counted)
        return value

    def _losses(self, batch: TrainingBatch) -> list[StepLoss]:
        labels = self._labeller(batch)
        index = RowIndex(batch.spans, self._device)
        with self._autocast():
            outputs = self._drafter(batch, self._options.unrolled_steps)
            return [
                step_loss(self._drafter.normed(hidden), self._drafter.lm_head.weight, labels, *index.positions(step))
                for step, hidden in enumerate(outputs)
            ]

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self._device.type, torch.bfloat16) if self._half else contextlib.nullcontext()

    @torch.no_grad()
    def _evaluate(self, step: int, tally: Tally) -> None:
        """Add a point to the curves and start new sums."""
        loss = weight = 0.0
        agreed: list[int] = []
        counted: list[int] = []
        for places in self._held_out:
            batch = self._answers_only.load(places).to(self._device)
            losses = self._losses(batch)
            loss += float(sum_of(losses, self._options.step_decay))
            weight += float(batch.weight.sum())
            count_agreement(losses, agreed, counted)
        point = Evaluation(
            step=step,
            rows=tally.rows,
            training_loss=tally.loss / max(1, tally.batches),
            held_out_loss=loss / max(1.0, weight),
            agreement=_shares(agreed, counted),
            training_agreement=_shares(tally.agreed, tally.counted),
        )
        tally.history.append(point)
        tally.loss, tally.batches, tally.agreed, tally.counted = 0.0, 0, [], []
        log.info(
            "evaluation",
            step=step,
            of=self.total_steps,
            training_loss=round(point.training_loss, 4),
            held_out_loss=round(point.held_out_loss, 4),
            agreement=[round(share, 3) for share in point.agreement],
            training_agreement=[round(share, 3) for share in point.training_agreement],
        )


def sum_of(losses: Sequence[StepLoss], decay: float) -> Tensor:
    """Total loss: step j weighs decay ** j."""
    return torch.stack([decay**number * one.loss for number, one in enumerate(losses)]).sum()


def count_agreement(losses: Sequence[StepLoss], agreed: list[int], counted: list[int]) -> None:
    """Add each step's counts to the sums."""
    for number, one in enumerate(losses):
        if number == len(agreed):
            agreed.append(0)
            counted.append(0)
        agreed[number] += int(one.agreed)
        counted[number] += int(one.counted)


def _shares(agreed: Sequence[int], counted: Sequence[int]) -> tuple[float, ...]:
    return tuple(one / max(1, total) for one, total in zip(agreed, counted, strict=True))
