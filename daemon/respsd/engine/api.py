"""The border between the engine and everything above it.

The service, the CLI and their tests know this Protocol only; `loop.EngineLoop` is the real one, `stub.StubEngine`
the deterministic one for tests. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from respsd.engine.events import EngineEvent
from respsd.engine.request import GenerationRequest, Priority

Deliver = Callable[[EngineEvent], None]
"""Called on the engine's thread for each event of one request, in order; it must return at once and not raise."""


class Tokenizer(Protocol):
    """Text to token ids and back; safe to call from any thread."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The token that the model expects in front of a text; None: none."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the model expects before it."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of `role`/`content` messages by the model's template, ready for the assistant's answer.

        Raises InvalidRequest where there is no template or the template refuses the messages.
        """
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        ...

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Each token's own text, for display."""
        ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is being served."""

    target: str
    drafter: str | None
    dtype: str
    device: str
    vocab_size: int
    context_length: int
    """Positions of the target: prompt and output together."""
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What waits for the engine at one moment, and what may."""

    tokens: int = 0
    """Of prompts and budgets."""
    by_priority: Mapping[Priority, int] = field(default_factory=dict)
    """Requests; priorities that none has may be left out."""
    oldest_seconds: float = 0.0
    """How long the one that came first has waited."""
    expected_seconds: float | None = 0.0
    """What a request that comes now would wait, by the rate at which requests start; None: not measured."""
    max_requests: int = 0
    max_tokens: int | None = None
    """None: no bound."""
    max_seconds: float | None = None
    """After it a request is given up; None: never."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's work at one moment."""

    running: int
    waiting: int
    kv_tokens_reserved: int
    kv_tokens_total: int
    seconds_since_progress: float
    """Age of the last finished step or prefill chunk while there is work; 0 when idle, infinite once it died."""
    max_running: int = 0
    queue: QueueLoad = field(default_factory=QueueLoad)


class Engine(Protocol):
    """Generates tokens for many requests on a thread of its own."""

    @property
    def model(self) -> ModelInfo:
        """What is served."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        ...

    def start(self) -> None:
        """Start the thread; once."""
        ...

    def submit(self, request: GenerationRequest, deliver: Deliver) -> None:
        """Queue a request from any thread; events go to `deliver`.

        Raises InvalidRequest (it can never fit), UnknownPolicy, PolicyRefused, Overloaded (the queue is full),
        QueueTooSlow (it could not start in time) or EngineUnavailable (not running).
        """
        ...

    def check(self, request: GenerationRequest) -> None:
        """Raise what `submit` would for what the request asks for, whatever else there is to do; from any thread.

        A version that it names by number may be read from disk: on an event loop it would hold up all others.
        """
        ...

    def check_room(self) -> None:
        """Raise Overloaded where the queue is full, from any thread: callers learn it before they prepare a request."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request within one step; its last event is a RequestFinished, CANCELLED. Unknown ids are ignored.

        A request that waits makes room for others at once.
        """
        ...

    def load(self) -> EngineLoad:
        """The work at this moment; from any thread."""
        ...

    def stop(self) -> None:
        """Fail what is left with EngineUnavailable and end the thread; idempotent."""
        ...
