"""What the engine tells its caller about a request, as typed events in order.

The prompt's log-probs where they were asked for, tokens*, then finished or failed.
"""

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
    TIME_LIMIT = "time_limit"
    """The request's own time limit passed."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; completion_tokens counts every committed token, the one that ended it included."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """A token's log-probability after the tokens before it, in nats, under the target's own distribution.

    It is the softmax of the target's logits in float32, before temperature and every other processor.
    """

    token_id: int
    log_prob: float | None
    """None for a prompt's first token, which follows nothing."""
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens in its place and their log-probabilities, the best first, of equals the lower id."""


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The log-probs of all prompt tokens, in order; before the first token is committed."""

    log_probs: tuple[TokenLogProb, ...]


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """One step's committed tokens and the text that became certain with them.

    The texts of all events joined are the final text. `text` may lag behind `token_ids`: bytes of an unfinished
    character and a possible beginning of a stop string are held back.
    """

    token_ids: tuple[int, ...]
    text: str
    log_probs: tuple[TokenLogProb, ...] = ()
    """One for each token, where the request asks for them."""


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


EngineEvent = PromptScored | TokensCommitted | RequestFinished | RequestFailed
