"""Feeds the metrics with what happens in the engine."""

from __future__ import annotations

from respsd.control.controller import Decision
from respsd.engine.events import RequestFinished
from respsd.engine.hooks import EngineHooks
from respsd.engine.window import StepMeasure
from respsd.telemetry.metrics import BETWEEN_ARMS, Metrics


class EngineMetrics(EngineHooks):
    """The engine's hooks, counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def after_prefill(self, seconds_since_submit: float) -> None:
        """The first token's time; the token itself belongs to no arm, since no tree made it."""
        self._metrics.first_token(seconds_since_submit)

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """Tokens and time of one sequence's step."""
        seconds = (step.draft_ns + step.verify_ns + step.other_ns) / 1e9
        self._metrics.tokens_generated(arm, step.committed_tokens, seconds)
        self._metrics.tokens_followed(step.committed_tokens, seconds)
        self._metrics.step_ran(step.applied, step.drafted_tokens, step.accepted_tokens, step.committed_tokens)

    def after_switch(self, before: Decision, decision: Decision) -> None:
        """A sequence goes on under another draft tree."""
        self._metrics.action_switched(decision.arm if decision.arm == before.arm else BETWEEN_ARMS)

    def drafter_fault(self) -> None:
        """A NaN or Inf in the drafts."""
        self._metrics.draft_was_nan()

    def after_request(self, finished: RequestFinished) -> None:
        """A request that ended as asked, cancelled ones included; `CallMetrics` counts it with its status."""
        self._metrics.waited(finished.queue_seconds)
