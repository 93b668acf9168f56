"""Streams of requests to a daemon: as soon as one is answered the next one is sent."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from respsd_client import Client, GenerateOptions, Prompt


@dataclass(frozen=True, slots=True)
class Answered:
    """One request that was answered."""

    prompt: int
    """Its prompt's number."""
    token_ids: tuple[int, ...]
    at_seconds: float
    """When it was answered, since the traffic began."""


class Traffic:
    """Sends prompts in turn, over several streams at a time."""

    def __init__(
        self,
        client: Client,
        prompts: Sequence[Prompt],
        options: GenerateOptions,
        streams: int,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """:param progress: called after each answer, on a thread of a stream"""
        self._client = client
        self._prompts = prompts
        self._options = options
        self._streams = streams
        self._progress = progress
        self._lock = threading.Lock()

    def once(self) -> list[Answered]:
        """Send every prompt once; the answers in the prompts' order. Raises ServiceError where a request fails."""
        return sorted(self._run(iter(range(len(self._prompts)))), key=lambda each: each.prompt)

    def until(self, done: Callable[[], bool], most: int | None = None) -> list[Answered]:
        """Send the prompts again and again until `done`, which is asked before each request, or `most` requests.

        Raises ServiceError where a request fails.
        """
        endless = itertools.cycle(range(len(self._prompts)))
        numbers = endless if most is None else itertools.islice(endless, most)
        return self._run(itertools.takewhile(lambda _: not done(), numbers))

    def _run(self, numbers: Iterator[int]) -> list[Answered]:
        """Where a stream fails the others end with the request that they are at."""
        began, found, failed = time.monotonic(), list[Answered](), threading.Event()

        def stream() -> None:
            try:
                while not failed.is_set() and (number := self._next(numbers)) is not None:
                    result = self._client.generate(self._prompts[number], **self._options)
                    found.append(Answered(number, tuple(result.token_ids), time.monotonic() - began))
                    self._progress()
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(self._streams) as pool:
            for each in [pool.submit(stream) for _ in range(self._streams)]:
                each.result()
        return sorted(found, key=lambda each: each.at_seconds)

    def _next(self, numbers: Iterator[int]) -> int | None:
        with self._lock:
            return next(numbers, None)


def chat_prompts(client: Client, texts: Sequence[str]) -> list[Prompt]:
    """Texts as the served model is asked: by its chat template where it has one."""
    if client.model_info().has_chat_template:
        return [[{"role": "user", "content": text}] for text in texts]
    return list(texts)
