"""A sequence: one request in the engine, from admission to its last event."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from respsd.control.router import ControllerSource
from respsd.control.signals import SignalTracker
from respsd.engine.api import Deliver
from respsd.engine.events import (
    FinishReason,
    PromptScored,
    RequestFailed,
    RequestFinished,
    TokenLogProb,
    TokensCommitted,
    Usage,
)
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.request import GenerationRequest
from respsd.engine.sampling import Sampler
from respsd.engine.stopping import StopScanner
from respsd.engine.window import Window
from respsd.errors import RespsdError
from respsd.experience.records import TransitionRecord


@dataclass(slots=True)
class PendingRows:
    """Rows that the target has seen and the drafter not yet: features of positions whose next token is known."""

    tokens: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)  # each [rows, 3 * hidden]

    def add(self, tokens: list[int], features: Tensor) -> None:
        """:param tokens: the token after each row; `features` [rows, 3 * hidden]."""
        self.tokens += tokens
        self.features.append(features)

    def take(self) -> tuple[Tensor, Tensor]:
        """All rows, as int64 [rows] and [rows, 3 * hidden]; nothing is pending afterwards."""
        features = self.features[0] if len(self.features) == 1 else torch.cat(self.features)
        tokens = torch.tensor(self.tokens, device=features.device)
        self.tokens, self.features = [], []
        return tokens, features

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """What the target gave at a prompt's last token, for the request's other samples."""

    logits: Tensor  # [vocab]
    features: Tensor  # [3 * hidden]


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one running request. `output` ends with the root: the last sampled token, not yet in the KV cache."""

    request: GenerationRequest
    deliver: Deliver
    controllers: ControllerSource
    sampler: Sampler
    scanner: StopScanner
    signals: SignalTracker
    cache: SequenceCache
    draft_cache: SequenceCache | None
    """None where nothing is ever drafted for this request."""
    slots: slice
    """The range of KV slots that admission reserved."""
    submitted_ns: int
    admitted_ns: int
    created_at_ns: int
    """UTC; the other two are monotonic."""
    pending: PendingRows = field(default_factory=PendingRows)
    output: list[int] = field(default_factory=list)
    last_features: Tensor | None = None  # [3 * hidden], at the last position in the KV cache
    window: Window | None = None
    windows: int = 0
    transitions: list[TransitionRecord] = field(default_factory=list)
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    version_first: int | None = None
    version_last: int | None = None
    ended: FinishReason | RespsdError | None = None
    """Why the sequence is over; it is taken out of the batch after the step."""
    matched_stop: str | None = None
    prompt_scores: list[TokenLogProb] = field(default_factory=list)
    """Log-probs of the prompt tokens so far, where the request asks for them."""
    prompt_end: PromptEnd | None = None
    """Kept where other samples of the request start from it."""
    first_sample: Sequence | None = None
    """Whose prompt this sequence takes over once it is in, rather than prefilling its own: one that holds its memory
    still."""

    @property
    def prefilled(self) -> bool:
        """Whether the whole prompt is in the KV cache."""
        return bool(self.output)

    @property
    def root(self) -> int:
        """The last sampled token."""
        return self.output[-1]

    @property
    def tree_tokens(self) -> int:
        """Tokens that its next step verifies at most, as far as its open window tells, or else the one before."""
        if self.window is not None:
            return self.window.decision.action.total_tokens
        return self.transitions[-1].decision.action.total_tokens if self.transitions else 1

    def is_out_of_time(self, now_ns: int) -> bool:
        """Whether the request's own time limit has passed."""
        return now_ns - self.submitted_ns >= self.request.stopping.time_limit_ns

    def is_first_sample_of(self, request: GenerationRequest) -> bool:
        """Whether a further sample of the same call can start from this sequence's prompt."""
        mine = self.request
        return mine.request_id == request.request_id and mine.sample == 0 and self.ended is None

    @property
    def awaits_prompt(self) -> bool:
        """Whether another sample's prefill is what it waits for."""
        return self.first_sample is not None and not self.prefilled

    def score_prompt(self, scores: tuple[TokenLogProb, ...], *, is_last: bool) -> None:
        """Add log-probs of prompt tokens, and hand all of them to the client after the last ones."""
        if not self.prompt_scores:
            self.prompt_scores.append(TokenLogProb(self.request.prompt_ids[0], None))
        self.prompt_scores += scores
        if is_last:
            self.deliver(PromptScored(tuple(self.prompt_scores)))
            self.prompt_scores = []

    def emit(self, tokens: list[int], log_probs: tuple[TokenLogProb, ...] = ()) -> int:
        """Cut new tokens at the first boundary, hand them to the client, and return how many were committed."""
        cut = self.scanner.scan(tokens)
        kept = tokens[: cut.kept]
        self.output += kept
        self.sampler.commit(kept)
        self.deliver(TokensCommitted(tuple(kept), cut.text, log_probs[: len(kept)]))
        if cut.reason is not None:
            self.matched_stop = cut.matched_stop
            self.end(cut.reason)
        return len(kept)

    def end(self, reason: FinishReason) -> None:
        """End the request; the first reason stands."""
        if self.ended is not None:
            return
        self.ended = reason
        if held := self.scanner.close():
            self.deliver(TokensCommitted((), held))

    def fail(self, error: RespsdError) -> None:
        """End the request by a fault."""
        if self.ended is None:
            self.ended = error

    def last_event(self) -> RequestFinished | RequestFailed:
        """The event that closes the request's stream."""
        if isinstance(self.ended, RespsdError):
            return RequestFailed(self.ended)
        assert self.ended is not None
        return RequestFinished(
            reason=self.ended,
            usage=Usage(len(self.request.prompt_ids), len(self.output)),
            seed=self.request.sampling.seed,
            steps=self.steps,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            policy_version_first=self.version_first,
            policy_version_last=self.version_last,
            matched_stop=self.matched_stop,
            queue_seconds=(self.admitted_ns - self.submitted_ns) / 1e9,
            prefill_seconds=self.prefill_ns / 1e9,
            decode_seconds=self.decode_ns / 1e9,
        )
