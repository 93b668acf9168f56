"""A request's answer on the wire: whole, or as the messages of a stream."""

from __future__ import annotations

from collections.abc import Iterator

from respsd.engine.events import RequestFinished, TokenLogProb
from respsd.engine.request import GenerationRequest
from respsd.service.event_stream import Part
from respsd.service.messages import finished_message, log_prob_messages
from respsd_client.v1 import generation_pb2

Message = generation_pb2.GenerateStreamResponse

_SCORED_TOKENS = 1024
"""Tokens in one message where their log-probs are told: a long prompt's must not pass the client's largest message."""


class Answer:
    """Gathers the parts of all samples into one response."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._samples = [_Output(number, request.echo or "") for number in range(request.samples)]
        self._prompt_log_probs: list[TokenLogProb] = []

    def add(self, part: Part) -> None:
        """Take the next part."""
        self._samples[part.sample].add(part)
        self._prompt_log_probs += part.prompt_log_probs

    def message(self) -> generation_pb2.GenerateResponse:
        """The response, once all parts are in."""
        request, samples = self._request, [output.message() for output in self._samples]
        first = samples[0]
        return generation_pb2.GenerateResponse(
            request_id=request.request_id,
            text=first.text,
            token_ids=first.token_ids,
            finished=first.finished,
            logprobs=first.logprobs,
            prompt_token_ids=_echoed_ids(request),
            prompt_logprobs=log_prob_messages(self._prompt_log_probs),
            samples=samples if len(samples) > 1 else (),
        )


class _Output:
    """One sample's output."""

    def __init__(self, number: int, text: str) -> None:
        self._number = number
        self._texts = [text]
        self._token_ids: list[int] = []
        self._log_probs: list[TokenLogProb] = []
        self._finished: RequestFinished | None = None

    def add(self, part: Part) -> None:
        self._texts.append(part.text)
        self._token_ids += part.token_ids
        self._log_probs += part.log_probs
        self._finished = part.finished

    def message(self) -> generation_pb2.Sample:
        assert self._finished is not None
        return generation_pb2.Sample(
            text="".join(self._texts),
            token_ids=self._token_ids,
            finished=finished_message(self._finished, self._number),
            logprobs=log_prob_messages(self._log_probs),
        )


def opening_messages(request: GenerationRequest) -> Iterator[Message]:
    """What a stream begins with: that the request is accepted, and the prompt's text where it is asked for."""
    started = generation_pb2.Started(
        request_id=request.request_id,
        prompt_tokens=len(request.prompt_ids),
        seed=request.sampling.seed,
        prompt_token_ids=_echoed_ids(request),
        samples=request.samples,
    )
    yield Message(started=started)
    if request.echo is not None:
        for sample in range(request.samples):
            yield Message(chunk=generation_pb2.Chunk(text=request.echo, index=sample))


def part_messages(part: Part) -> Iterator[Message]:
    """The messages of one part."""
    for start in range(0, len(part.prompt_log_probs), _SCORED_TOKENS):
        tokens = log_prob_messages(part.prompt_log_probs[start : start + _SCORED_TOKENS])
        yield Message(prompt_logprobs=generation_pb2.PromptLogProbs(tokens=tokens))
    if part.token_ids or part.text:
        size = _SCORED_TOKENS if part.log_probs else max(1, len(part.token_ids))
        for start in range(0, max(1, len(part.token_ids)), size):
            yield Message(
                chunk=generation_pb2.Chunk(
                    token_ids=part.token_ids[start : start + size],
                    text="" if start else part.text,
                    index=part.sample,
                    logprobs=log_prob_messages(part.log_probs[start : start + size]),
                )
            )
    if part.finished is not None:
        yield Message(finished=finished_message(part.finished, part.sample))


def _echoed_ids(request: GenerationRequest) -> tuple[int, ...]:
    return () if request.echo is None else request.prompt_ids
