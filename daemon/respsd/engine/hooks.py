"""What an observer of the engine may hook into: named moments, each a no-op here (metrics subclass this)."""

from __future__ import annotations

from respsd.engine.events import RequestFinished
from respsd.engine.window import StepMeasure


class EngineHooks:
    """Called on the engine's thread; must return at once and not raise."""

    def after_prefill(self, seconds_since_submit: float) -> None:
        """The first token of a request is known."""

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """A sequence finished a step under a window that `arm` chose."""

    def drafter_fault(self) -> None:
        """A tree held NaN or Inf; its step went on without speculation."""

    def after_request(self, finished: RequestFinished) -> None:
        """A request ended without a fault."""

    def request_failed(self) -> None:
        """A request ended by a fault."""
