"""What a method gives back for its prompts: tokens, when each came, and what the engine's steps did.

Every method is timed the same way, from outside: when its prompts were handed over, and when tokens came out. So
prefill and everything between two steps count, and nothing is taken from a method's own account of its time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from respsd.engine.window import StepMeasure

TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens of one stream that came out together."""

    seconds: float
    """Since the prompts were handed over."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One stream's output."""

    token_ids: tuple[int, ...]
    deliveries: tuple[Delivery, ...]
    """In order; the first one ends the prefill."""

    @property
    def time_to_first_token(self) -> float:
        """Seconds."""
        return self.deliveries[0].seconds

    @property
    def seconds(self) -> float:
        """From the prompt to the last token."""
        return self.deliveries[-1].seconds

    @property
    def decode_seconds(self) -> float:
        """From the first delivery to the last one."""
        return self.seconds - self.time_to_first_token

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first delivery."""
        return len(self.token_ids) - self.deliveries[0].tokens

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies as a reader of the stream sees them: seconds between deliveries."""
        times = [delivery.seconds for delivery in self.deliveries]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@dataclass(frozen=True, slots=True)
class Batch:
    """The answers to prompts that were handed over together."""

    answers: tuple[Answer, ...]
    steps: tuple[StepMeasure, ...] = ()
    """Of our engine, one for each step and stream."""
    policy_seconds: float = 0.0
    """Spent on observations and on choosing actions, in our engine."""

    @property
    def seconds(self) -> float:
        """Until the last stream ended."""
        return max(answer.seconds for answer in self.answers)


class Decoder(Protocol):
    """Something that answers prompts greedily by one method."""

    def decode(self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool) -> Batch:
        """Answer all prompts at the same time and wait for the last one."""
        ...


class Stopwatch:
    """Collects one stream's tokens with the time at which they come."""

    def __init__(self, started: float) -> None:
        """:param started: `now()` when the prompts were handed over."""
        self._started = started
        self._token_ids: list[int] = []
        self._deliveries: list[Delivery] = []

    def deliver(self, token_ids: TokenIds) -> None:
        """Note tokens that came just now; none is no delivery."""
        if token_ids:
            self._token_ids += token_ids
            self._deliveries.append(Delivery(now() - self._started, len(token_ids)))

    def answer(self) -> Answer:
        """What came so far."""
        return Answer(tuple(self._token_ids), tuple(self._deliveries))


def now() -> float:
    """Seconds of a clock that only moves forward."""
    return time.perf_counter()
