"""GenerationService over an Engine."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

import structlog

from respsd.clock import Clock, SystemClock
from respsd.engine.api import Engine
from respsd.engine.events import RequestFinished
from respsd.engine.request import GenerationRequest
from respsd.engine.samples import samples_of
from respsd.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest
from respsd.service.answer import Answer, opening_messages, part_messages
from respsd.service.answer_size import check_sent, check_tokenized
from respsd.service.calls import note_request
from respsd.service.concurrency import Concurrency, client_of
from respsd.service.event_stream import EventStream
from respsd.service.interceptor import Context, current_request_id, is_request_id, use_request_id
from respsd.service.messages import model_info_message
from respsd.service.validation import GenerateMessage, RequestReader
from respsd_client.v1 import generation_pb2, generation_pb2_grpc

log = structlog.get_logger(__name__)

TOKENIZING_THREADS = 2
Result = TypeVar("Result")


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Reads requests, hands them to the engine, writes its events; whoever stops listening is cancelled there."""

    def __init__(self, engine: Engine, reader: RequestReader, clock: Clock | None = None) -> None:
        """:param clock: the engine's, by which deadlines are told."""
        self._engine = engine
        self._reader = reader
        self._clock = clock or SystemClock()
        self._tokenizing = ThreadPoolExecutor(TOKENIZING_THREADS, thread_name_prefix="tokenize")
        self._in_flight: set[str] = set()  # ids that the engine has not let go of
        self.concurrency = Concurrency()
        self._draining = False

    async def Generate(  # noqa: N802  the wire's name
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        """Generate to the end."""
        async with self._running(request, context) as (accepted, events):
            answer = Answer(accepted)
            async for part in events:
                answer.add(part)
        whole = answer.message()
        check_sent(accepted, whole.ByteSize(), self._reader.limits.max_answer_bytes)
        return whole

    # A coroutine that writes, and no generator: so a cancel that comes while a slow reader holds up a write is raised
    # here, and not in the library while the generator waits for the garbage collector.
    async def GenerateStream(  # type: ignore[override]  # noqa: N802
        self, request: generation_pb2.GenerateStreamRequest, context: Context
    ) -> None:
        """Write tokens as they are committed."""
        async with self._running(request, context) as (accepted, events):
            for message in opening_messages(accepted):
                await context.write(message)
            async for part in events:
                for message in part_messages(part):
                    await context.write(message)

    async def Tokenize(  # noqa: N802
        self, request: generation_pb2.TokenizeRequest, context: Context
    ) -> generation_pb2.TokenizeResponse:
        """Token ids of a prompt. It shares the tokenizing threads with requests, so it counts as one of them."""
        with self._counted(context):
            token_ids = await self._off_loop(self._reader.prompt_ids, request.prompt)
            pieces: list[str] = []
            if request.with_pieces:
                pieces = await self._off_loop(self._engine.tokenizer.pieces, token_ids)
        answer = generation_pb2.TokenizeResponse(token_ids=token_ids, pieces=pieces)
        check_tokenized(len(token_ids), answer.ByteSize(), self._reader.limits.max_answer_bytes)
        return answer

    async def GetModelInfo(  # noqa: N802
        self, _request: generation_pb2.GetModelInfoRequest, _context: Context
    ) -> generation_pb2.GetModelInfoResponse:
        """What is served."""
        return model_info_message(
            self._engine.model,
            has_chat_template=self._engine.tokenizer.has_chat_template,
            default_max_new_tokens=self._reader.limits.default_max_new_tokens,
        )

    def use_reader(self, reader: RequestReader) -> None:
        """Read requests that come from now on with another reader."""
        self._reader = reader

    def refuse_new(self) -> None:
        """Answer new requests with UNAVAILABLE from now on."""
        self._draining = True

    async def wait_idle(self) -> None:
        """Return when no request is being answered."""
        await self.concurrency.wait_idle()

    def close(self) -> None:
        """Let the tokenizing threads end."""
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _running(
        self, message: GenerateMessage, context: Context
    ) -> AsyncIterator[tuple[GenerationRequest, EventStream]]:
        """The accepted request and its events; a cancel or a deadline ends it in the engine too."""
        began_ns = self._clock.monotonic_ns()
        with self._counted(context):
            request = await self._accept(message, context)
            read_ns = self._clock.monotonic_ns()
            events = self._submit(request)
            note_request(request, events)
            try:
                yield request, events
            finally:
                if not events.is_over:
                    self._engine.cancel(request.request_id)
                if events.end is None:
                    log.info("request_abandoned", finish_reason="cancelled")
                elif isinstance(events.end, RequestFinished):
                    seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
                    _log_finished(events.end, seconds, read_seconds=(read_ns - began_ns) / 1e9)

    def _counted(self, context: Context) -> AbstractContextManager[None]:
        """One more call that is being answered; raises EngineUnavailable or Overloaded."""
        if self._draining:
            raise EngineUnavailable("the daemon is shutting down")
        return self.concurrency.counted(client_of(context.peer()), self._reader.limits)

    async def _accept(self, message: GenerateMessage, context: Context) -> GenerationRequest:
        self._engine.check_room()  # before the work of reading the request
        if message.HasField("request_id"):
            longest = self._reader.limits.max_request_id
            if not is_request_id(message.request_id, longest):
                limit = f"it must be 1 to {longest} visible ASCII characters"
                raise InvalidRequest("request_id", message.request_id, limit)
            use_request_id(message.request_id, context)
        _check_deadline(context)
        request = await self._off_loop(self._read, message, current_request_id())
        if not message.HasField("request_id"):
            request = dataclasses.replace(request, request_id=self._free_id(request.request_id))
        return dataclasses.replace(request, deadline_ns=self._deadline_ns(context))

    def _read(self, message: GenerateMessage, request_id: str) -> GenerationRequest:
        request = self._reader.read(message, request_id)
        self._engine.check(request)
        return request

    def _free_id(self, request_id: str) -> str:
        """The id of a call's metadata, numbered where a request in flight has it: a gateway gives all of one fan-out
        the same."""
        others = (f"{request_id}~{number}" for number in itertools.count(2))
        return next(each for each in itertools.chain([request_id], others) if each not in self._in_flight)

    def _deadline_ns(self, context: Context) -> int | None:
        left = _check_deadline(context)
        return None if left is None else self._clock.monotonic_ns() + round(left * 1e9)

    def _submit(self, request: GenerationRequest) -> EventStream:
        request_id = request.request_id
        if request_id in self._in_flight:
            raise InvalidRequest("request_id", request_id, "another request in flight has it")
        self._in_flight.add(request_id)
        samples = samples_of(request)
        events = EventStream(asyncio.get_running_loop(), lambda: self._in_flight.discard(request_id), len(samples))
        for number, sample in enumerate(samples):
            try:
                self._engine.submit(sample, events.delivery(number))
            except BaseException:
                events.expect_only(number)
                if number:  # the id is free again once the engine has let go of the samples before
                    self._engine.cancel(request_id)
                else:
                    self._in_flight.discard(request_id)
                raise
        return events

    async def _off_loop(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run tokenizing in a thread: a long prompt must not hold up other calls."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, function, *arguments)


def _check_deadline(context: Context) -> float | None:
    """Seconds until the caller's deadline, where there is one; raises DeadlineExceeded behind it."""
    left = context.time_remaining()
    if left is not None and left <= 0:
        raise DeadlineExceeded("the deadline passed before the request was queued")
    return left


def _log_finished(finished: RequestFinished, seconds: float, *, read_seconds: float) -> None:
    """One line a request; lengths and times, never text. A failed request's line is the interceptor's.

    :param seconds: from its arrival until its answer was written
    :param read_seconds: of these, for checking and tokenizing it
    """
    log.info(
        "request_finished",
        finish_reason=finished.reason.value,
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        steps=finished.steps,
        drafted_tokens=finished.drafted_tokens,
        accepted_tokens=finished.accepted_tokens,
        policy_version_first=finished.policy_version_first,
        policy_version_last=finished.policy_version_last,
        seconds=seconds,
        read_seconds=read_seconds,
        queue_seconds=finished.queue_seconds,
        prefill_seconds=finished.prefill_seconds,
        decode_seconds=finished.decode_seconds,
    )
