"""The rows of the experience log as plain values: what the engine hands over when a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from respsd.control.action import Action
from respsd.control.controller import Decision, EndedBlock


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """One window: what was seen, what was chosen and how, what it earned."""

    window: int
    """Number of the window in its request, from 0."""
    opened_at_ns: int
    """UTC, nanoseconds since the epoch."""
    observation: bytes
    """float32, little endian."""
    observation_schema: str
    """`ObservationSchema.fingerprint`."""
    decision: Decision
    """`decision.action` is the action asked for."""
    applied: Action
    """What the window's first step ran: the asked action clamped to the pool, the memory and the context."""
    degraded_steps: int
    """Steps that ran less than `applied`: near the context's end, or after a fault of the drafter."""
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    committed_tokens: int
    draft_ns: int
    verify_ns: int
    other_ns: int
    """Sampling, walk, KV compaction and commit; draft + verify + other is the window's decode time."""
    context_length: int
    """Tokens in the KV cache when the window opened."""
    batch_size: float
    """Mean number of sequences in the window's steps."""
    truncated: bool
    """The request ended before the window had its steps."""
    first_step_tokens: int = 0
    """Committed by the window's first step, which may pay for a switch of actions."""
    first_step_ns: int = 0
    """Decode time of the first step."""
    last_step_tokens: int = 0
    """Committed by the last step; of a truncated window they may be cut by the request's end."""
    last_step_ns: int = 0

    def at_rest(self) -> TransitionRecord:
        """The row as it waits to be written, with nothing of the running rollout."""
        block = self.decision.block
        if block is None:
            return self
        return replace(self, decision=replace(self.decision, block=EndedBlock(block.number)))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request."""

    request_id: str
    created_at_ns: int
    finished_at_ns: int
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    temperature: float
    top_p: float
    top_k: int
    seed: int
    steps: int
    drafted_tokens: int
    accepted_tokens: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    policy_version_first: int | None
    policy_version_last: int | None


class ExperienceSink(Protocol):
    """Takes a finished request and its windows; never blocks, never raises."""

    def record(self, request: RequestRecord, transitions: Sequence[TransitionRecord]) -> bool:
        """Queue the rows whole, or drop them whole and count them; False when dropped."""
        ...
