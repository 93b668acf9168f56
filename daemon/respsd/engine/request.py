"""What the engine is asked for: prompt, sampling, boundaries and how to speculate."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from respsd.control.action import Action

MAX_SEED = 2**63 - 1
_FOREVER_NS = 1 << 62


class Priority(enum.IntEnum):
    """Who goes first of those that wait (see `queue`); it changes nothing once a request has started."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits; the defaults are greedy decoding.

    Processors act in this order at every node, on that node's own path: logit bias, repetition penalty,
    presence and frequency penalty, min_new_tokens (EOS and stop tokens barred), temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Acts on every token of the prompt and the output (CTRL, as transformers does)."""
    frequency_penalty: float = 0.0
    """Acts on output tokens only, per occurrence."""
    presence_penalty: float = 0.0
    """Acts on output tokens only, once."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    """Keys the noise together with the absolute position; the service draws one where the client gave none."""

    @property
    def is_greedy(self) -> bool:
        """Whether the token is the best of the processed logits, without noise."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class StoppingParams:
    """Where the output ends; the earliest boundary in token order wins."""

    max_new_tokens: int
    """The client's budget (LENGTH), at least 1."""
    min_new_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    """Whether the text keeps the stop string that ended it."""
    time_limit_seconds: float | None = None
    """Time from its submission after which the request ends with what it has (TIME_LIMIT); None: no such end."""

    @property
    def time_limit_ns(self) -> int:
        """The time limit in nanoseconds; longer than anything lasts where there is none."""
        return _FOREVER_NS if self.time_limit_seconds is None else round(self.time_limit_seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Who chooses the draft trees: a fixed action, a named policy (version or alias), else the daemon's default."""

    action: Action | None = None
    policy: str | None = None
    exploration_opt_out: bool = False
    """Where neither is set: the default policy it is, never an explorer's or a rollout's."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One validated request; `request_id` is unique among those in flight, but for samples of one call."""

    request_id: str
    prompt_ids: tuple[int, ...]
    stopping: StoppingParams
    sampling: SamplingParams = SamplingParams()
    speculation: Speculation = Speculation()
    skip_special_tokens: bool = True
    learning_opt_out: bool = False
    """Leave no rows of this request in transitions.db."""
    clamped_to_context: bool = False
    """The client set no budget and max_new_tokens is the rest of the context: its end is CONTEXT, not LENGTH."""
    priority: Priority = Priority.NORMAL
    deadline_ns: int | None = None
    """Monotonic time after which nobody waits for the answer: a request that has not started by then never does."""
    log_probs: int | None = None
    """Most probable tokens that are told beside each output token's own log-prob; None: no log-probs."""
    prompt_log_probs: int | None = None
    """The same for the prompt's tokens."""
    echo: str | None = None
    """The prompt's text, where the output's text is to go on from it."""
    samples: int = 1
    """Requests that share this id, prompt and prefill, and differ in their seeds (see `samples`)."""
    sample: int = 0
    """Which of them this is."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and the budget."""
        return len(self.prompt_ids) + self.stopping.max_new_tokens
