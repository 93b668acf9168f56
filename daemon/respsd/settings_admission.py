"""Settings of how much work may wait, and for whom."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from respsd.settings_section import AutoPositive, Positive, Section, Unlimited


class AdmissionSettings(Section):
    """Who may wait for the engine, in which order and for how long. What is refused gets RESOURCE_EXHAUSTED at once,
    with the time after which to try again."""

    max_waiting_tokens: AutoPositive = None
    """Tokens of prompts and budgets that may queue together (engine.max_waiting bounds the requests); `auto` takes
    eight times the KV cache. One request may always wait."""
    max_queue_seconds: Annotated[Annotated[float, Field(gt=0)] | None, Unlimited] = 300.0
    """How long a request may wait for a place before it is given up; `unlimited` lets it wait."""
    priority_head_start: float = Field(default=10.0, ge=0)
    """Seconds of waiting that a step of priority (low, normal, high) is worth: a request is overtaken only by such as
    came at most this much later, twice as much from low to high. 0 makes all alike."""
    refuse_hopeless: bool = True
    """Refuse at once what could not start before its deadline or max_queue_seconds even if requests started twice as
    fast as they do."""
    max_in_flight: int = Field(default=1024, ge=1)
    """Requests that are read, queued or generated at once."""
    max_client_requests: Annotated[Positive | None, Unlimited] = 128
    """Of these, one caller's at most: a token's, a certificate's, a local user's, or else an address's."""
