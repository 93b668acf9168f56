"""What calls return, read from the wire messages; both clients use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from respsd_client.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """One complete output."""

    text: str
    token_ids: tuple[int, ...]
    """Every committed token, the one that ended the output included."""
    finish_reason: str
    """eos, stop_token, stop_string, length, context or cancelled."""
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of committed tokens and the text that became certain with them; either may be empty."""

    token_ids: tuple[int, ...]
    text: str


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
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._finished: generation_pb2.Finished | None = None

    def read(self, message: generation_pb2.GenerateStreamResponse) -> Chunk | None:
        """Take one message; return its chunk if it is one."""
        match message.WhichOneof("event"):
            case "started":
                self.started = message.started
            case "chunk":
                chunk = Chunk(tuple(message.chunk.token_ids), message.chunk.text)
                self._texts.append(chunk.text)
                self._token_ids += chunk.token_ids
                return chunk
            case "finished":
                self._finished = message.finished
        return None

    @property
    def result(self) -> GenerateResult:
        """The complete output; raises RuntimeError before the stream's last message."""
        if self.started is None or self._finished is None:
            raise RuntimeError("the stream has not been read to its end")
        return _result(self.started.request_id, "".join(self._texts), self._token_ids, self._finished)


def read_generate(response: generation_pb2.GenerateResponse) -> GenerateResult:
    """The result of a unary call."""
    return _result(response.request_id, response.text, response.token_ids, response.finished)


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


def _result(request_id: str, text: str, token_ids: Sequence[int], finished: generation_pb2.Finished) -> GenerateResult:
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
    )


def _finish_reason(number: generation_pb2.FinishReason.ValueType) -> str:
    try:
        return generation_pb2.FinishReason.Name(number).removeprefix("FINISH_REASON_").lower()
    except ValueError:
        return f"unknown_{number}"  # of a newer daemon
