"""One request's events on their way from the engine's thread to one asyncio reader."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from respsd.engine.api import Deliver
from respsd.engine.events import (
    EngineEvent,
    PromptScored,
    RequestFailed,
    RequestFinished,
    TokenLogProb,
    TokensCommitted,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Part:
    """What came of one sample since its last part."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    log_probs: tuple[TokenLogProb, ...] = ()
    prompt_log_probs: tuple[TokenLogProb, ...] = ()
    finished: RequestFinished | None = None
    """With the sample's last part."""
    sample: int = 0


@dataclass(slots=True, eq=False)
class _Sample:
    """What one sample's reader has not seen yet."""

    number: int
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    log_probs: list[TokenLogProb] = field(default_factory=list)
    prompt_log_probs: list[TokenLogProb] = field(default_factory=list)
    end: RequestFinished | RequestFailed | None = None
    end_is_read: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether there is something to read."""
        return bool(self.texts or self.prompt_log_probs) or (self.end is not None and not self.end_is_read)

    def take(self) -> Part:
        """What there is to read; raises a failed sample's error once the tokens before it are read."""
        if isinstance(self.end, RequestFailed) and not (self.texts or self.prompt_log_probs):
            self.end_is_read = True
            raise self.end.error
        finished = self.end if isinstance(self.end, RequestFinished) else None
        self.end_is_read = finished is not None
        part = Part(
            tuple(self.token_ids),
            "".join(self.texts),
            tuple(self.log_probs),
            tuple(self.prompt_log_probs),
            finished,
            self.number,
        )
        self.token_ids, self.texts, self.log_probs, self.prompt_log_probs = [], [], [], []
        return part


class EventStream:
    """Yields Parts until every sample is finished; a failed one's error is raised.

    Tokens that arrive while nobody reads are merged into one part, so that a slow reader costs no more memory than
    the output itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None], samples: int = 1) -> None:
        """:param on_end: called on the loop when the engine has let go of the request, all samples of it."""
        self._loop = loop
        self._on_end = on_end
        self._samples = [_Sample(number) for number in range(samples)]
        self._turn = 0  # the sample that is looked at first
        self._changed = asyncio.Event()
        self.committed_tokens = 0
        """Tokens that the engine delivered so far, in all samples."""

    @property
    def is_over(self) -> bool:
        """Whether the engine has let go of the request."""
        return all(sample.end is not None for sample in self._samples)

    @property
    def end(self) -> RequestFinished | RequestFailed | None:
        """The failure of any sample, else how they finished once the engine has let go of the request."""
        finished = []
        for sample in self._samples:
            if isinstance(sample.end, RequestFailed):
                return sample.end
            if sample.end is not None:
                finished.append(sample.end)
        return together(finished) if len(finished) == len(self._samples) else None

    @property
    def finished(self) -> RequestFinished:
        """How the request ended, once the parts are read."""
        end = self.end
        if not isinstance(end, RequestFinished):
            raise RuntimeError("the request has not finished")
        return end

    def deliver(self, event: EngineEvent) -> None:
        """Take an event of the only sample, or the first; called on the engine's thread."""
        self._deliver(0, event)

    def delivery(self, sample: int) -> Deliver:
        """`deliver` for one of several samples."""
        return partial(self._deliver, sample)

    def expect_only(self, samples: int) -> None:
        """The engine did not take the other samples; on the loop, before it runs again."""
        self._samples = self._samples[:samples]

    def _deliver(self, sample: int, event: EngineEvent) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, self._samples[sample], event)
        except RuntimeError:  # the loop is closed: nobody reads any more
            return

    def _take(self, sample: _Sample, event: EngineEvent) -> None:
        match event:
            case TokensCommitted():
                sample.token_ids += event.token_ids
                sample.texts.append(event.text)
                sample.log_probs += event.log_probs
                self.committed_tokens += len(event.token_ids)
            case PromptScored():
                sample.prompt_log_probs += event.log_probs
            case RequestFinished() | RequestFailed():
                sample.end = event
                if self.is_over:
                    self._on_end()
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Part:
        while (ready := self._next_ready()) is None:
            if self.is_over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return ready.take()

    def _next_ready(self) -> _Sample | None:
        """A sample with something to read; each gets its turn."""
        count = len(self._samples)
        for step in range(count):
            sample = self._samples[(self._turn + step) % count]
            if sample.is_ready:
                self._turn = (sample.number + 1) % count
                return sample
        return None


def together(samples: Sequence[RequestFinished]) -> RequestFinished:
    """Several samples' ends as one, for logs and metrics: counts add up, the samples' steps run side by side."""
    first = samples[0]
    if len(samples) == 1:
        return first
    return dataclasses.replace(
        first,
        usage=Usage(first.usage.prompt_tokens, sum(each.usage.completion_tokens for each in samples)),
        steps=sum(each.steps for each in samples),
        drafted_tokens=sum(each.drafted_tokens for each in samples),
        accepted_tokens=sum(each.accepted_tokens for each in samples),
        prefill_seconds=sum(each.prefill_seconds for each in samples),
        decode_seconds=max(each.decode_seconds for each in samples),
    )
