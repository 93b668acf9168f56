"""What one request may ask for; every limit is in the message that refuses past it."""

from __future__ import annotations

from dataclasses import dataclass

from respsd.control.action import Action

LARGEST_PUBLISHED = Action(total_tokens=128, depth=8, top_k=32)
"""The paper's largest knobs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request's fields; the model's vocabulary and context bound it besides."""

    default_max_new_tokens: int = 1024
    """Budget of a request that sets none, or the rest of the context where that is less."""
    max_prompt_bytes: int = 1 << 20
    """UTF-8 bytes of a prompt's text, or of all its messages together: tokenizing costs time before tokens count."""
    max_chat_messages: int = 1024
    """A chat template adds tokens of its own to each."""
    min_temperature: float = 1e-4
    """Below it, and not 0, logits divided by the temperature overflow."""
    max_temperature: float = 100.0
    max_repetition_penalty: float = 2.0
    max_penalty: float = 2.0
    """Of frequency and presence penalty, either way."""
    max_logit_bias: int = 1024
    """Tokens that one request may bias."""
    max_logit_bias_value: float = 100.0
    """Either way."""
    max_stop_strings: int = 6
    max_stop_string_bytes: int = 240
    max_stop_token_ids: int = 64
    max_samples: int = 16
    """Samples of one request's prompt."""
    max_top_logprobs: int = 20
    """Most probable tokens that are told at each place."""
    max_time_limit_seconds: float = 86_400.0
    max_answer_bytes: int = 16 << 20
    """Of an answer that comes whole; clients of this project take no larger message."""
    max_policy_name: int = 64
    """Characters."""
    max_history: int = 1000
    """Entries of the policies' history that are told at once."""
    max_request_id: int = 128
    """Characters."""
    largest_action: Action = LARGEST_PUBLISHED
    """No knob of a request's own action may exceed it."""
    max_in_flight: int = 1024
    """Requests that are being read, queued or generated at once."""
    max_client_requests: int | None = None
    """Of these, one caller's at most; None: no bound."""
