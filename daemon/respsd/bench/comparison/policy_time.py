"""How long the engine spends on choosing actions, measured where it happens.

From the beginning of a step to the end of a window's choice nothing else is done than building observations and asking
controllers; what a step's later windows cost counts from the choice before.
"""

from __future__ import annotations

import threading
import time

from respsd.control.controller import Controller, Decision, Vector
from respsd.control.router import ControllerSource, RequestRouter
from respsd.engine.local_run import StepLog
from respsd.engine.request import Speculation

_NS_PER_SECOND = 1e9


class PolicyTime(StepLog):
    """Keeps the steps of an engine and the time of its policy; its methods run on the engine's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.complete = threading.Event()
        """Set once a batch's requests are all with the engine: no step begins before, so that they share each."""
        self.complete.set()
        self._ns = 0
        self._mark = 0

    @property
    def seconds(self) -> float:
        """Spent on the policy since the last `clear`."""
        return self._ns / _NS_PER_SECOND

    def clear(self) -> None:
        """Forget steps and time."""
        self.steps.clear()
        self._ns = 0

    def before_batch(self) -> None:
        """A step begins."""
        self.complete.wait()
        self._mark = time.perf_counter_ns()

    def chosen(self) -> None:
        """A window has its action."""
        now = time.perf_counter_ns()
        self._ns += now - self._mark
        self._mark = now


class TimedRouter:
    """A router whose choices are timed."""

    def __init__(self, inner: RequestRouter, spent: PolicyTime) -> None:
        self._inner = inner
        self._spent = spent

    def check(self, speculation: Speculation) -> None:
        """See `RequestRouter.check`."""
        self._inner.check(speculation)

    def resolve(self, speculation: Speculation) -> ControllerSource:
        """See `RequestRouter.resolve`."""
        return _TimedSource(self._inner.resolve(speculation), self._spent)


class _TimedSource:
    def __init__(self, inner: ControllerSource, spent: PolicyTime) -> None:
        self._inner = inner
        self._spent = spent

    def current(self) -> Controller:
        return _TimedController(self._inner.current(), self._spent)


class _TimedController:
    def __init__(self, inner: Controller, spent: PolicyTime) -> None:
        self._inner = inner
        self._spent = spent

    @property
    def version(self) -> int | None:
        return self._inner.version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        decision = self._inner.choose(observation, uniform)
        self._spent.chosen()
        return decision
