"""Reduces a quad, four blocks in ABBA or BAAB order, to one observation: the log ratio of the arms' speeds.

Of each window its first step is left out, which may pay for a switch of actions, and the last step of a window that
the request's end cut, whose tokens were cut but not its time; both on both sides alike. Each sequence is compared with
itself, so that prompt, length and sampling cancel; sequences that shared the quad's steps are averaged into the one
observation, since they had the same arm at the same time and are no independent evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from respsd.experience.records import TransitionRecord

BLOCKS = 4
"""Blocks of a quad; the first two are a pair, and the last two."""
LEAST_STEPS = 3
"""A block with fewer measured steps of a sequence says too little of it; its pair is left out."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one sequence did in one block."""

    steps: int = 0
    tokens: int = 0
    ns: int = 0

    @classmethod
    def of(cls, window: TransitionRecord) -> Measured:
        """A window without its first step and, where the request's end cut it, without its last."""
        steps, tokens = window.steps - 1, window.committed_tokens - window.first_step_tokens
        ns = window.draft_ns + window.verify_ns + window.other_ns - window.first_step_ns
        if window.truncated and window.steps > 1:
            steps, tokens, ns = steps - 1, tokens - window.last_step_tokens, ns - window.last_step_ns
        return cls(steps, tokens, ns)

    def __add__(self, other: Measured) -> Measured:
        return Measured(self.steps + other.steps, self.tokens + other.tokens, self.ns + other.ns)

    @property
    def usable(self) -> bool:
        """Whether it says enough."""
        return self.steps >= LEAST_STEPS and self.tokens > 0 and self.ns > 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One quad's outcome."""

    log_ratio: float
    """Natural logarithm of tokens per second, subject over control; the mean over the sequences."""
    sequences: int
    subject: Measured
    """Sums over the sequences."""
    control: Measured


def observe(order: Sequence[bool], sequences: Sequence[Sequence[Measured]]) -> Observation | None:
    """The observation of a quad; None where no sequence has a whole pair in it.

    :param order: [BLOCKS], whether the subject ran each block; in either pair it ran exactly one
    :param sequences: for each sequence what it did in each block, [BLOCKS]
    """
    ratios: list[float] = []
    both = (Measured(), Measured())
    for blocks in sequences:
        control, subject = _sides(order, blocks)
        if control.usable and subject.usable:
            ratios.append(math.log(subject.tokens / subject.ns) - math.log(control.tokens / control.ns))
            both = (both[0] + control, both[1] + subject)
    if not ratios:
        return None
    return Observation(sum(ratios) / len(ratios), len(ratios), subject=both[1], control=both[0])


def _sides(order: Sequence[bool], blocks: Sequence[Measured]) -> tuple[Measured, Measured]:
    """Sums over the whole pairs of one sequence: control, subject."""
    sides = [Measured(), Measured()]
    for first in range(0, BLOCKS, 2):
        pair = range(first, first + 2)
        if all(blocks[position].usable for position in pair):
            for position in pair:
                sides[order[position]] += blocks[position]
    return sides[0], sides[1]
