"""What an observer of the engine may hook into: named moments, each a no-op here (metrics subclass this)."""

from __future__ import annotations

from respsd.control.controller import Decision
from respsd.engine.events import RequestFinished
from respsd.engine.window import StepMeasure
from respsd.experience.records import TransitionRecord


class EngineHooks:
    """Called on the engine's thread; must return at once and not raise."""

    def after_prefill(self, seconds_since_submit: float) -> None:
        """The first token of a request is known."""

    def before_batch(self) -> None:
        """A step of all prefilled sequences begins; windows that open in it open after this."""

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """A sequence finished a step under a window that `arm` chose."""

    def after_window(self, window: TransitionRecord) -> None:
        """A window of one sequence closed; one that the request's end cut is marked truncated."""

    def after_switch(self, before: Decision, decision: Decision) -> None:
        """A window closed whose action is not that of the window before it in its sequence."""

    def drafter_fault(self) -> None:
        """A tree held NaN or Inf; its step went on without speculation."""

    def after_request(self, finished: RequestFinished) -> None:
        """A request ended without a fault."""

    def request_failed(self) -> None:
        """A request ended by a fault."""


class HookChain(EngineHooks):
    """Several observers, told in order."""

    def __init__(self, *hooks: EngineHooks) -> None:
        self._hooks = hooks

    def after_prefill(self, seconds_since_submit: float) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.after_prefill(seconds_since_submit)

    def before_batch(self) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.before_batch()

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.after_step(arm, step)

    def after_window(self, window: TransitionRecord) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.after_window(window)

    def after_switch(self, before: Decision, decision: Decision) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.after_switch(before, decision)

    def drafter_fault(self) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.drafter_fault()

    def after_request(self, finished: RequestFinished) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.after_request(finished)

    def request_failed(self) -> None:
        """See `EngineHooks`."""
        for each in self._hooks:
            each.request_failed()
