"""What the engine is asked for: prompt, sampling, boundaries and how to speculate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from respsd.control.action import Action

MAX_SEED = 2**63 - 1


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


@dataclass(frozen=True, slots=True)
class Speculation:
    """Who chooses the draft trees: a fixed action, a named policy (version or alias), else the daemon's default."""

    action: Action | None = None
    policy: str | None = None
    exploration_opt_out: bool = False
    """Where neither is set: the default policy it is, never an explorer's or a rollout's."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One validated request; `request_id` is unique among those in flight."""

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
