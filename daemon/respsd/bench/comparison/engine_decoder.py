"""Our engine as a method: requests that all carry the same way to choose their draft trees."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from respsd.bench.comparison.answers import Batch, Stopwatch, TokenIds, now
from respsd.bench.comparison.policy_time import PolicyTime
from respsd.engine.api import Engine
from respsd.engine.events import EngineEvent, RequestFailed, RequestFinished, TokensCommitted
from respsd.engine.local_run import local_request
from respsd.engine.request import Speculation
from respsd.errors import RespsdError


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """A running engine and the log of its steps."""

    engine: Engine
    log: PolicyTime


@dataclass(frozen=True, slots=True)
class EngineDecoder:
    """A Decoder over a running engine. One decoder at a time may be at work: they share its log."""

    measured: MeasuredEngine
    speculation: Speculation

    def decode(self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool) -> Batch:
        """See `Decoder.decode`; raises the error of a request that failed."""
        self.measured.log.clear()
        requests = [
            local_request(prompt, self.speculation, max_new_tokens, ignore_eos=ignore_eos) for prompt in prompts
        ]
        ended: queue.SimpleQueue[RequestFinished | RespsdError] = queue.SimpleQueue()
        started = now()
        watches = [Stopwatch(started) for _ in requests]
        self.measured.log.complete.clear()
        try:
            for request, watch in zip(requests, watches, strict=True):
                self.measured.engine.submit(request, partial(_deliver, watch, ended))
        finally:
            self.measured.log.complete.set()
        for _ in requests:
            end = ended.get()
            if isinstance(end, RespsdError):
                raise end
        return Batch(
            answers=tuple(watch.answer() for watch in watches),
            steps=tuple(self.measured.log.steps),
            policy_seconds=self.measured.log.seconds,
        )


def _deliver(watch: Stopwatch, ended: queue.SimpleQueue[RequestFinished | RespsdError], event: EngineEvent) -> None:
    match event:
        case TokensCommitted(token_ids, _):
            watch.deliver(token_ids)
        case RequestFinished():
            ended.put(event)
        case RequestFailed(error):
            ended.put(error)
