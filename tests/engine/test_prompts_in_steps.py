"""Prompts that go in beside running streams: the bound on a step's tokens holds."""

from __future__ import annotations

from collections.abc import Callable

from support.engines import load_tiny, plain, request, running
from support.listening import Listener

from respsd.control.action import Action
from respsd.engine.events import RequestFinished
from respsd.engine.loop import LoopLimits

PROMPT = [1, 40, 17, 99, 254, 3, 60]
LIMITS = LoopLimits(step_tokens=24, prefill_slowdown=1e9)
"""Times bound nothing here."""


class Follower(Listener):
    """Calls `then` between two steps of the engine, once so many of its own tokens are there."""

    def __init__(self, tokens: int, then: Callable[[], None]) -> None:
        super().__init__()
        self._calls = {tokens: then}

    def __call__(self, event: object) -> None:
        super().__call__(event)
        for tokens in [each for each in self._calls if len(self.tokens) >= each]:
            self._calls.pop(tokens)()


def test_a_long_prompt_goes_along_with_the_steps_of_a_running_stream(monkeypatch):
    """In parts that keep to the bound on a step's tokens; neither request's tokens change."""
    long = [3 + i % 280 for i in range(180)]
    with running(load_tiny(), limits=LIMITS) as rig:
        alone = [rig.generate(plain(PROMPT, 120)).token_ids, rig.generate(plain(long, 5)).token_ids]
        target, forwards = rig.models.target, list[list[int]]()
        forward = target.forward
        monkeypatch.setattr(
            target, "forward", lambda batch: forwards.append([len(rows.tokens) for rows in batch]) or forward(batch)
        )
        late = Listener()
        stream = Follower(1, lambda: rig.engine.submit(plain(long, 5), late))
        rig.engine.submit(plain(PROMPT, 120), stream)
        assert isinstance(stream.last(), RequestFinished)
        assert isinstance(late.last(), RequestFinished)
    assert [tuple(stream.tokens), tuple(late.tokens)] == alone
    mixed = [tokens for tokens in forwards if len(tokens) == 2]
    assert mixed[0][0] == 1
    assert mixed[0][1] > 1
    assert all(sum(tokens) <= 24 for tokens in mixed)


def test_a_prompt_leaves_room_for_the_tree_of_a_window_that_opens(monkeypatch):
    """With windows of one step there is none open when a step is planned."""
    with running(load_tiny(), limits=LIMITS, persistence=1) as rig:
        target, forwards = rig.models.target, list[list[int]]()
        forward = target.forward
        monkeypatch.setattr(
            target, "forward", lambda batch: forwards.append([len(rows.tokens) for rows in batch]) or forward(batch)
        )
        late = Listener()
        # Of its first window nothing is known before its second token.
        stream = Follower(2, lambda: rig.engine.submit(plain([3 + i % 280 for i in range(100)], 5), late))
        rig.engine.submit(request(PROMPT, 120, action=Action(16, 4, 4)), stream)
        assert isinstance(stream.last(), RequestFinished)
        assert isinstance(late.last(), RequestFinished)
    mixed = [tokens for tokens in forwards if len(tokens) == 2 and max(tokens) > 1]
    assert mixed
    assert all(sum(tokens) <= 24 for tokens in mixed)
