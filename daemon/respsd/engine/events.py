"""What the engine tells its caller about a request, as typed events in order: tokens*, then finished or failed."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from respsd.errors import RespsdError


class FinishReason(enum.Enum):
    """Why the output ended where it did."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """max_new_tokens, the client's own budget."""
    CONTEXT = "context"
    """The model's context is full."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; completion_tokens counts every committed token, the one that ended it included."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """One step's committed tokens and the text that became certain with them.

    The texts of all events joined are the final text. `text` may lag behind `token_ids`: bytes of an unfinished
    character and a possible beginning of a stop string are held back.
    """

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The end of a request that was not a fault; nothing follows."""

    reason: FinishReason
    usage: Usage
    seed: int
    steps: int
    """Draft + verify + commit cycles; the first token comes from the prefill, not from a step."""
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that were committed."""
    policy_version_first: int | None
    """Version that chose the first window; None where a fixed action of the request did."""
    policy_version_last: int | None
    matched_stop: str | None = None
    """The stop string that ended the output."""
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request ended by a fault; nothing follows."""

    error: RespsdError


EngineEvent = TokensCommitted | RequestFinished | RequestFailed
