"""Watching and holding an engine's requests from a test's own thread."""

from __future__ import annotations

import queue
import threading

from respsd.control.action import Action
from respsd.control.controller import Decision, Vector
from respsd.engine.events import TokensCommitted


class Listener:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.first_token = threading.Event()
        self.tokens: list[int] = []

    def __call__(self, event: object) -> None:
        if isinstance(event, TokensCommitted):
            self.tokens += event.token_ids
            self.first_token.set()
        else:
            self.events.put(event)

    def last(self) -> object:
        return self.events.get(timeout=60)


class Gate:
    """A champion that blocks the engine's thread when a window opens, until let go."""

    version = 5

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def choose(self, observation: Vector, uniform: float) -> Decision:
        self.reached.set()
        assert self.go.wait(60)
        return Decision(Action(8, 3, 3), 0.0, "champion", policy_version=5)
