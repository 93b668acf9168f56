"""Many streams decode; then a long prompt arrives, again and again. How long does a stream wait for its next tokens?

Prompts are random tokens, since times do not depend on what they say. A *gap* is the time between two deliveries of
one stream, as its reader sees it: a step, and whatever that step took along.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from respsd.bench.comparison.answers import now
from respsd.bench.percentiles import Percentiles
from respsd.control.action import Action
from respsd.engine.admission import scratch_rows
from respsd.engine.api import Engine
from respsd.engine.assembly import EngineConfig, Models, Shapes
from respsd.engine.events import EngineEvent, RequestFailed, RequestFinished, TokensCommitted
from respsd.engine.local_run import fixed_request, running_engine
from respsd.engine.loop import LoopLimits
from respsd.engine.request import GenerationRequest
from respsd.errors import InvalidRequest, RespsdError

_LONGEST_OUTPUT = 4096
"""Tokens that a stream decodes at most; it is ended when the measurement is over."""
_SETTLING = 4
"""Deliveries of each stream before anything counts."""


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """What is run."""

    action: Action
    streams: int
    context: int
    """Tokens of each stream's prompt."""
    arriving: int
    """Tokens of the prompt that arrives."""
    steps: int
    """Deliveries of each stream that count before each arrival."""
    repeats: int
    """Arrivals."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of all streams in one phase, in seconds."""

    count: int
    times: Percentiles
    longest: float

    @classmethod
    def of(cls, gaps: Sequence[float]) -> Gaps:
        """Sum up; there is at least one."""
        times = Percentiles.of(gaps)
        assert times is not None
        return cls(len(gaps), times, max(gaps))


@dataclass(frozen=True, slots=True)
class Latency:
    """What came of it."""

    joining: Gaps
    """From each stream's first token until all have theirs: the streams' own prompts come in."""
    steady: Gaps
    """While nothing arrives."""
    arriving: Gaps
    """Those that a part of an arriving prompt's prefill fell into."""
    first_token: float
    """Of the arriving prompts, the mean in seconds."""

    @property
    def spread(self) -> float:
        """p99 over p50 while nothing arrives."""
        return self.steady.times.p99 / self.steady.times.p50

    @property
    def delay(self) -> float:
        """p99 of the gaps while a prompt arrives, over the p50 while none does."""
        return self.arriving.times.p99 / self.steady.times.p50


def measure_latency(
    models: Models,
    plan: LatencyPlan,
    limits: LoopLimits,
    rng: random.Random,
    progress: Callable[[int], None] = lambda _: None,
    shapes: Shapes | None = None,
) -> Latency:
    """Run the plan. :param progress: told of each arrival; raises InvalidRequest where the model's context is short."""
    window = models.info.context_length
    if plan.arriving + 1 > window or plan.context + _needed(plan) > window:
        longest = max(plan.arriving + 1, plan.context + _needed(plan))
        raise InvalidRequest("context", longest, f"the model has {window} tokens of context")
    output = min(_LONGEST_OUTPUT, window - plan.context)
    scratch = scratch_rows(plan.action)
    kv_tokens = plan.streams * (plan.context + output + scratch) + plan.arriving + 1 + scratch
    config = EngineConfig(
        reserved=plan.action,
        kv_tokens=kv_tokens,
        limits=replace(limits, max_running=plan.streams + 1),
        shapes=shapes,
    )

    def prompt(length: int) -> list[int]:
        return [rng.randrange(models.info.vocab_size) for _ in range(length)]

    requests = [fixed_request(prompt(plan.context), plan.action, output) for _ in range(plan.streams)]
    with running_engine(models, plan.action, config=config) as engine, _streams(engine, requests) as streams:
        streams.wait(_SETTLING)
        joined = now()
        steady: list[float] = []
        arriving: list[float] = []
        first_tokens: list[float] = []
        for _ in range(plan.repeats):
            began = now()
            streams.wait(plan.steps)
            sent = now()
            streams.run(fixed_request(prompt(plan.arriving), plan.action, 1))
            came = now()
            streams.wait(1)
            steady += streams.gaps_inside(began, sent)
            arriving += streams.gaps_touching(sent, came)
            first_tokens.append(came - sent)
            progress(1)
        joining = streams.gaps_inside(0.0, joined)
    return Latency(Gaps.of(joining), Gaps.of(steady), Gaps.of(arriving), sum(first_tokens) / len(first_tokens))


def _needed(plan: LatencyPlan) -> int:
    """Tokens that a stream decodes at the least."""
    return _SETTLING + plan.repeats * (plan.steps + 1)


class _Streams:
    """Running requests and when each got tokens."""

    def __init__(self, engine: Engine, requests: Sequence[GenerationRequest]) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._times: list[list[float]] = [[] for _ in requests]
        self._ended = 0
        self._fault: RespsdError | None = None
        for request, times in zip(requests, self._times, strict=True):
            engine.submit(request, partial(self._deliver, times))

    def _deliver(self, times: list[float], event: EngineEvent) -> None:
        with self._changed:
            match event:
                case TokensCommitted(token_ids):
                    times += [now()] if token_ids else []
                case RequestFailed(error):
                    self._fault = error
                case RequestFinished():
                    self._ended += 1
            self._changed.notify_all()

    def wait(self, deliveries: int) -> None:
        """Until every stream got so many deliveries more; raises what a request failed with."""
        with self._changed:
            wanted = [len(times) + deliveries for times in self._times]
            self._changed.wait_for(lambda: self._over() or self._reached(wanted))
            self._check()

    def run(self, request: GenerationRequest) -> None:
        """One more request, to its end."""
        done = self._ended + 1
        self._engine.submit(request, partial(self._deliver, []))
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or self._ended >= done)
            self._ended -= 1
            self._check()

    def gaps_inside(self, since: float, until: float) -> list[float]:
        """Those that lie in the span wholly."""
        return [end - start for start, end in self._pairs() if since <= start and end <= until]

    def gaps_touching(self, since: float, until: float) -> list[float]:
        """Those of which some part lies in the span."""
        return [end - start for start, end in self._pairs() if start < until and end > since]

    def _pairs(self) -> list[tuple[float, float]]:
        with self._changed:
            return [pair for times in self._times for pair in itertools.pairwise(times)]

    def _reached(self, wanted: Sequence[int]) -> bool:
        return all(len(times) >= count for times, count in zip(self._times, wanted, strict=True))

    def _over(self) -> bool:
        return self._fault is not None or self._ended > 0

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._ended:
            raise InvalidRequest("steps", _LONGEST_OUTPUT, "a stream's output was full before the measurement's end")


@contextmanager
def _streams(engine: Engine, requests: Sequence[GenerationRequest]) -> Iterator[_Streams]:
    """Start the requests; whatever happens they are cancelled at the end."""
    try:
        yield _Streams(engine, requests)
    finally:
        for request in requests:
            engine.cancel(request.request_id)
