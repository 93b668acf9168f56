"""A window: consecutive steps of one sequence under one action, measured into a transition."""

from __future__ import annotations

from dataclasses import dataclass

from respsd.control.action import Action
from respsd.control.controller import Decision, Vector
from respsd.experience.records import TransitionRecord


@dataclass(frozen=True, slots=True)
class StepMeasure:
    """What one step of one sequence did, and how long the whole step took.

    Sequences that share a step all waited for it, so each is charged the whole step's time.
    """

    applied: Action
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that were committed."""
    committed_tokens: int
    draft_ns: int
    verify_ns: int
    other_ns: int
    batch_size: int

    @property
    def decode_ns(self) -> int:
        """The whole step: draft, verify and what is between and behind them."""
        return self.draft_ns + self.verify_ns + self.other_ns


class Window:
    """Sums the steps of one window."""

    def __init__(
        self, number: int, opened_at_ns: int, observation: Vector, decision: Decision, context_length: int
    ) -> None:
        self.number = number
        self.decision = decision
        self.steps = 0
        self._opened_at_ns = opened_at_ns
        self._observation = observation
        self._context_length = context_length
        self._applied: Action | None = None
        self._degraded_steps = 0
        self._drafted = self._accepted = self._committed = 0
        self._draft_ns = self._verify_ns = self._other_ns = 0
        self._batch_sizes = 0
        self._first_step: StepMeasure | None = None
        self._last_step: StepMeasure | None = None

    def is_over(self, persistence: int) -> bool:
        """Whether it has its steps; a window of a rollout's block also ends where the block does."""
        block = self.decision.block
        return self.steps >= persistence or (block is not None and block.over)

    def add(self, step: StepMeasure) -> None:
        """Count a step in."""
        if self._applied is None:
            self._applied, self._first_step = step.applied, step
        self._last_step = step
        self._degraded_steps += step.applied != self._applied
        self.steps += 1
        self._drafted += step.drafted_tokens
        self._accepted += step.accepted_tokens
        self._committed += step.committed_tokens
        self._draft_ns += step.draft_ns
        self._verify_ns += step.verify_ns
        self._other_ns += step.other_ns
        self._batch_sizes += step.batch_size

    def close(self, schema: str, *, truncated: bool) -> TransitionRecord | None:
        """The window as a row; None where it had no step."""
        if self._applied is None or self._first_step is None or self._last_step is None:
            return None
        return TransitionRecord(
            window=self.number,
            opened_at_ns=self._opened_at_ns,
            observation=self._observation.astype("<f4").tobytes(),
            observation_schema=schema,
            decision=self.decision,
            applied=self._applied,
            degraded_steps=self._degraded_steps,
            steps=self.steps,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            committed_tokens=self._committed,
            draft_ns=self._draft_ns,
            verify_ns=self._verify_ns,
            other_ns=self._other_ns,
            context_length=self._context_length,
            batch_size=self._batch_sizes / self.steps,
            truncated=truncated,
            first_step_tokens=self._first_step.committed_tokens,
            first_step_ns=self._first_step.decode_ns,
            last_step_tokens=self._last_step.committed_tokens,
            last_step_ns=self._last_step.decode_ns,
        )
