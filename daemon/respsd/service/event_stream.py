"""One request's events on their way from the engine's thread to one asyncio reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from respsd.engine.events import EngineEvent, RequestFailed, RequestFinished, TokensCommitted


class EventStream:
    """Yields TokensCommitted; at the end `finished` has the last event, and a RequestFailed is raised as its error.

    Tokens that arrive while nobody reads are merged into one event, so that a slow reader costs no more memory than
    the output itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        """:param on_end: called on the loop when the engine has let go of the request."""
        self._loop = loop
        self._on_end = on_end
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._end: RequestFinished | RequestFailed | None = None
        self._changed = asyncio.Event()
        self.committed_tokens = 0
        """Tokens that the engine delivered so far."""

    @property
    def end(self) -> RequestFinished | RequestFailed | None:
        """The last event, once the engine has let go of the request."""
        return self._end

    @property
    def finished(self) -> RequestFinished:
        """How the request ended, once the events are read."""
        if not isinstance(self._end, RequestFinished):
            raise RuntimeError("the request has not finished")
        return self._end

    def deliver(self, event: EngineEvent) -> None:
        """Take an event; called on the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, event)
        except RuntimeError:  # the loop is closed: nobody reads any more
            return

    def _take(self, event: EngineEvent) -> None:
        if isinstance(event, TokensCommitted):
            self._token_ids += event.token_ids
            self.committed_tokens += len(event.token_ids)
            self._texts.append(event.text)
        else:
            self._end = event
            self._on_end()
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokensCommitted:
        while not (self._texts or self._end):
            self._changed.clear()
            await self._changed.wait()
        if self._texts:
            merged = TokensCommitted(tuple(self._token_ids), "".join(self._texts))
            self._token_ids, self._texts = [], []
            return merged
        if isinstance(self._end, RequestFailed):
            raise self._end.error
        raise StopAsyncIteration
