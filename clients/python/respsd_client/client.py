"""The client for ordinary programs."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self, Unpack

import grpc

from respsd_client.channel import DEFAULT_ADDRESS, open_channel
from respsd_client.credentials import Tls
from respsd_client.errors import service_errors
from respsd_client.policies import PolicyCalls
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
from respsd_client.status import StatusCalls
from respsd_client.v1 import generation_pb2, generation_pb2_grpc, policy_pb2_grpc, status_pb2_grpc


class GenerationStream(Iterator[Chunk]):
    """Chunks of an output as they are committed; `result` once they are read. Leaving its `with` cancels the rest."""

    def __init__(self, call: grpc.CallIterator[generation_pb2.GenerateStreamResponse]) -> None:
        self._call = call
        self._reader = StreamReader()

    def __next__(self) -> Chunk:
        with service_errors():
            for message in self._call:
                chunk = self._reader.read(message)
                if chunk is not None:
                    return chunk
        raise StopIteration

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
        self._call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leave it bare

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Client(PolicyCalls, StatusCalls):
    """A connection to a daemon at `HOST:PORT` or `unix:PATH`; safe to share between threads.

    Every call raises ServiceError when it fails; `timeout` is in seconds, None waits for ever.
    """

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, tls: Tls | None = None, token: str | None = None, retries: int = 0
    ) -> None:
        """Raises ValueError on what cannot be.

        :param tls: without it files $RESPSD_CA, or $RESPSD_CERTIFICATE and $RESPSD_KEY, turn TLS on
        :param token: a bearer token; without it $RESPSD_TOKEN
        :param retries: how often a generation or status call is tried again where the daemon is unavailable or its
            queue full, 0 to 4; never once its answer has begun
        """
        self._channel = open_channel(address, tls=tls, token=token, retries=retries)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._policies = policy_pb2_grpc.PolicyServiceStub(self._channel)
        self._status = status_pb2_grpc.StatusServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerateResult:
        """Generate to the end and return the whole output."""
        request = generate_request(generation_pb2.GenerateRequest, prompt, options)
        with service_errors():
            return read_generate(self._generation.Generate(request, timeout=timeout))

    def stream(
        self, prompt: Prompt, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> GenerationStream:
        """Start generating and return an iterator of chunks."""
        request = generate_request(generation_pb2.GenerateStreamRequest, prompt, options)
        return GenerationStream(self._generation.GenerateStream(request, timeout=timeout))

    def tokenize(
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
            return read_tokenize(self._generation.Tokenize(request, timeout=timeout))

    def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        """What the daemon serves."""
        with service_errors():
            return read_model_info(self._generation.GetModelInfo(generation_pb2.GetModelInfoRequest(), timeout=timeout))

    def close(self) -> None:
        """Close the connection and cancel what is under way."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
