"""The client for asyncio programs; `client.py` with awaits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

import grpc.aio

from respsd_client.aio_policies import AsyncPolicyCalls
from respsd_client.channel import DEFAULT_ADDRESS, open_aio_channel
from respsd_client.credentials import Tls
from respsd_client.errors import ServiceError, service_errors
from respsd_client.request import GenerateOptions, Prompt, generate_request, prompt_message
from respsd_client.result import (
    Chunk,
    GenerateResult,
    ModelInfo,
    StreamReader,
    Tokens,
    read_generate,
    read_model_info,
    read_tokenize,
)
from respsd_client.status import AsyncStatusCalls
from respsd_client.v1 import generation_pb2, generation_pb2_grpc, policy_pb2_grpc, status_pb2_grpc

if TYPE_CHECKING:  # generic in the type stubs only
    _StreamCall = grpc.aio.UnaryStreamCall[generation_pb2.GenerateStreamRequest, generation_pb2.GenerateStreamResponse]


class AsyncGenerationStream(AsyncIterator[Chunk]):
    """GenerationStream for asyncio: `async for` and `async with`."""

    def __init__(self, call: _StreamCall) -> None:
        self._call = call
        self._messages = aiter(call)
        self._reader = StreamReader()
        self._cancelled = False

    async def __anext__(self) -> Chunk:
        with service_errors():
            try:
                async for message in self._messages:
                    chunk = self._reader.read(message)
                    if chunk is not None:
                        return chunk
            except asyncio.CancelledError:
                if not self._cancelled:
                    raise
                # the library reports a call that we cancelled as if the task were
                raise ServiceError(grpc.StatusCode.CANCELLED, "the stream was cancelled") from None
        raise StopAsyncIteration

    @property
    def result(self) -> GenerateResult:
        """The complete output; raises RuntimeError before all chunks are read."""
        return self._reader.result

    @property
    def request_id(self) -> str | None:
        """The request's id; None before the first chunk."""
        return self._reader.started.request_id if self._reader.started else None

    def cancel(self) -> None:
        """Stop generating; reading on raises ServiceError with CANCELLED. After the end it does nothing."""
        self._cancelled = self._call.cancel() or self._cancelled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class AsyncClient(AsyncPolicyCalls, AsyncStatusCalls):
    """Client for asyncio; made and used inside one event loop."""

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, tls: Tls | None = None, token: str | None = None, retries: int = 0
    ) -> None:
        """Raises ValueError on what cannot be.

        :param tls: without it files $RESPSD_CA, or $RESPSD_CERTIFICATE and $RESPSD_KEY, turn TLS on
        :param token: a bearer token; without it $RESPSD_TOKEN
        :param retries: how often a generation or status call is tried again where the daemon is unavailable or its
            queue full, 0 to 4; never once its answer has begun
        """
        self._channel = open_aio_channel(address, tls=tls, token=token, retries=retries)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._policies = policy_pb2_grpc.PolicyServiceStub(self._channel)
        self._status = status_pb2_grpc.StatusServiceStub(self._channel)

    async def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateResult:
        """Generate to the end and return the whole output."""
        request = generate_request(generation_pb2.GenerateRequest, prompt, options)
        with service_errors():
            return read_generate(await self._generation.Generate(request, timeout=timeout))

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerationStream:
        """Start generating and return an asynchronous iterator of chunks."""
        request = generate_request(generation_pb2.GenerateStreamRequest, prompt, options)
        return AsyncGenerationStream(self._generation.GenerateStream(request, timeout=timeout))

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        with_pieces: bool = False,
        truncate: int | None = None,
        timeout: float | None = None,
    ) -> Tokens:
        """Token ids of a prompt, as generation would start from."""
        message = prompt_message(prompt, truncate=truncate)
        request = generation_pb2.TokenizeRequest(prompt=message, with_pieces=with_pieces)
        with service_errors():
            return read_tokenize(await self._generation.Tokenize(request, timeout=timeout))

    async def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """What the daemon serves."""
        with service_errors():
            return read_model_info(
                await self._generation.GetModelInfo(generation_pb2.GetModelInfoRequest(), timeout=timeout)
            )

    async def close(self) -> None:
        """Close the connection and cancel what is under way."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
