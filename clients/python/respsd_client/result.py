"""What calls return, read from the wire messages; both clients use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from respsd_client.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """A token's log-probability after the tokens before it, in nats: the model's own, before sampling's options."""

    token_id: int
    logprob: float | None
    """None for a prompt's first token, which follows nothing."""
    top: Mapping[int, float]
    """The most probable tokens in its place, as many as were asked for, the best first."""


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """One complete output, the first of several samples."""

    text: str
    token_ids: tuple[int, ...]
    """Every committed token, the one that ended the output included."""
    finish_reason: str
    """eos, stop_token, stop_string, length, context, time_limit or cancelled."""
    matched_stop: str | None
    """The stop string that ended the output."""
    prompt_tokens: int
    completion_tokens: int
    seed: int
    """The seed in use, given or drawn; the same seed gives the same text again."""
    steps: int
    """Draft, verify and commit cycles; the first token comes from the prompt's forward pass."""
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that were committed."""
    policy_version_first: int | None
    policy_version_last: int | None
    """Policy versions that chose the first and the last draft tree; None where the request fixed them itself."""
    request_id: str
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    index: int = 0
    """Which sample it is."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """One for each token, where asked for."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt's tokens after truncation, where `echo` asked for them."""
    prompt_logprobs: tuple[TokenLogProb, ...] = ()
    """One for each token of the prompt, where asked for."""
    samples: tuple[GenerateResult, ...] = ()
    """All samples in order, this one first, where more than one was asked for."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of committed tokens and the text that became certain with them; either may be empty."""

    token_ids: tuple[int, ...]
    text: str
    index: int = 0
    """Which sample it belongs to."""
    logprobs: tuple[TokenLogProb, ...] = ()
    """One for each token, where asked for."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt's tokens."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    """Each token's own text, where asked for."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the daemon serves."""

    target: str
    drafter: str | None
    dtype: str
    device: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    default_max_new_tokens: int
    daemon_version: str


class StreamReader:
    """Reads the messages of one stream in order and keeps what the final result needs."""

    def __init__(self) -> None:
        self.started: generation_pb2.Started | None = None
        self._samples: dict[int, _Sample] = {}
        self._prompt_logprobs: list[TokenLogProb] = []

    def read(self, message: generation_pb2.GenerateStreamResponse) -> Chunk | None:
        """Take one message; return its chunk if it is one."""
        match message.WhichOneof("event"):
            case "started":
                self.started = message.started
            case "chunk":
                sent = message.chunk
                chunk = Chunk(tuple(sent.token_ids), sent.text, sent.index, _logprobs(sent.logprobs))
                self._sample(chunk.index).add(chunk)
                return chunk
            case "prompt_logprobs":
                self._prompt_logprobs += _logprobs(message.prompt_logprobs.tokens)
            case "finished":
                self._sample(message.finished.index).finished = message.finished
        return None

    @property
    def result(self) -> GenerateResult:
        """The complete output; raises RuntimeError before the stream's last message."""
        if self.started is None or len(self._samples) < max(1, self.started.samples):
            raise RuntimeError("the stream has not been read to its end")
        results = [self._samples[index].result(self.started.request_id) for index in sorted(self._samples)]
        prompt_ids = tuple(self.started.prompt_token_ids)
        return _first_of(results, prompt_ids, tuple(self._prompt_logprobs))

    def _sample(self, index: int) -> _Sample:
        return self._samples.setdefault(index, _Sample())


class _Sample:
    """What a stream gave of one sample."""

    def __init__(self) -> None:
        self.finished: generation_pb2.Finished | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogProb] = []

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        self._texts.append(chunk.text)
        self._token_ids += chunk.token_ids
        self._logprobs += chunk.logprobs

    def result(self, request_id: str) -> GenerateResult:
        """The complete output; raises RuntimeError before its end."""
        if self.finished is None:
            raise RuntimeError("the stream has not been read to its end")
        return _result(request_id, "".join(self._texts), self._token_ids, self.finished, tuple(self._logprobs))


def read_generate(response: generation_pb2.GenerateResponse) -> GenerateResult:
    """The result of a unary call."""
    outputs: Sequence[generation_pb2.GenerateResponse | generation_pb2.Sample] = response.samples or (response,)
    results = [
        _result(response.request_id, each.text, each.token_ids, each.finished, _logprobs(each.logprobs))
        for each in outputs
    ]
    return _first_of(results, tuple(response.prompt_token_ids), _logprobs(response.prompt_logprobs))


def read_tokenize(response: generation_pb2.TokenizeResponse) -> Tokens:
    """The result of Tokenize."""
    return Tokens(tuple(response.token_ids), tuple(response.pieces))


def read_model_info(response: generation_pb2.GetModelInfoResponse) -> ModelInfo:
    """The result of GetModelInfo."""
    return ModelInfo(
        target=response.target,
        drafter=response.drafter if response.HasField("drafter") else None,
        dtype=response.dtype,
        device=response.device,
        vocab_size=response.vocab_size,
        context_length=response.context_length,
        eos_token_ids=tuple(response.eos_token_ids),
        has_chat_template=response.has_chat_template,
        default_max_new_tokens=response.default_max_new_tokens,
        daemon_version=response.daemon_version,
    )


def _first_of(
    results: Sequence[GenerateResult], prompt_token_ids: tuple[int, ...], prompt_logprobs: tuple[TokenLogProb, ...]
) -> GenerateResult:
    """The first of some samples, with what the whole call has beside them."""
    first = dataclasses.replace(results[0], prompt_token_ids=prompt_token_ids, prompt_logprobs=prompt_logprobs)
    if len(results) == 1:
        return first
    return dataclasses.replace(first, samples=(first, *results[1:]))


def _logprobs(messages: Iterable[generation_pb2.TokenLogProb]) -> tuple[TokenLogProb, ...]:
    return tuple(
        TokenLogProb(
            each.token_id,
            each.logprob if each.HasField("logprob") else None,
            {token.token_id: token.logprob for token in each.top},
        )
        for each in messages
    )


def _result(
    request_id: str,
    text: str,
    token_ids: Sequence[int],
    finished: generation_pb2.Finished,
    logprobs: tuple[TokenLogProb, ...],
) -> GenerateResult:
    return GenerateResult(
        text=text,
        token_ids=tuple(token_ids),
        finish_reason=_finish_reason(finished.finish_reason),
        matched_stop=finished.matched_stop if finished.HasField("matched_stop") else None,
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        seed=finished.seed,
        steps=finished.steps,
        drafted_tokens=finished.drafted_tokens,
        accepted_tokens=finished.accepted_tokens,
        policy_version_first=finished.policy_version_first if finished.HasField("policy_version_first") else None,
        policy_version_last=finished.policy_version_last if finished.HasField("policy_version_last") else None,
        request_id=request_id,
        queue_seconds=finished.timings.queue_seconds,
        prefill_seconds=finished.timings.prefill_seconds,
        decode_seconds=finished.timings.decode_seconds,
        index=finished.index,
        logprobs=logprobs,
    )


def _finish_reason(number: generation_pb2.FinishReason.ValueType) -> str:
    try:
        return generation_pb2.FinishReason.Name(number).removeprefix("FINISH_REASON_").lower()
    except ValueError:
        return f"unknown_{number}"  # of a newer daemon
