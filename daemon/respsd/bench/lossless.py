"""Is speculation lossless on these models and this machine? Plain decoding against a spread of actions, token by token.

In float32 every difference is a fault, in greedy decoding and in sampling with a seed. In half precision a tree's
attention sums in another order than plain decoding, so the argmax may flip where the target's two best logits are
closer than the number format can tell; there greedy decoding is compared, and for each difference the gap between
the two is measured and held against `tolerance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.engine.assembly import EngineConfig, Models, Shapes
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.local_run import fixed_request, run, running_engine
from respsd.engine.request import SamplingParams
from respsd.engine.target import Target, causal_rows

SPREAD: tuple[Action, ...] = (
    Action(4, 1, 2),
    Action(8, 2, 4),
    Action(8, 3, 3),
    Action(16, 4, 4),
    Action(16, 2, 8),
    Action(32, 3, 8),
    Action(32, 5, 8),
    Action(48, 5, 12),
    EAGLE3,
    Action(64, 8, 8),
    Action(96, 6, 16),
    Action(128, 8, 32),
)
"""Small and large, deep and wide."""

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=20_260_112)

_TOLERANCE_STEPS = 4
"""Half-precision units in the last place of the best logit: rounding of one sum, carried through the layers."""

_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an action's output leaves plain decoding's."""

    prompt: int
    action: Action
    sampled: bool
    """Found while sampling with a seed, not in greedy decoding."""
    position: int
    """Of the first different token in the output."""
    logit_gap: float
    """Between the target's two best logits there."""
    tolerance: float
    """Gap below which the number format cannot tell the two apart; 0 in float32."""

    @property
    def explained(self) -> bool:
        """Whether rounding explains it."""
        return self.logit_gap <= self.tolerance


@dataclass(frozen=True, slots=True)
class LosslessReport:
    """Every comparison that was made."""

    dtype: str
    prompts: int
    compared: int
    differences: tuple[Difference, ...]

    @property
    def unexplained(self) -> int:
        """Differences that rounding does not explain."""
        return sum(not difference.explained for difference in self.differences)

    @property
    def prompts_that_differ(self) -> int:
        """Prompts with a difference under at least one action."""
        return len({difference.prompt for difference in self.differences})


def verify_lossless(
    models: Models,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    actions: Sequence[Action] = SPREAD,
    progress: Callable[[], None] = lambda: None,
    shapes: Shapes | None = None,
) -> LosslessReport:
    """Decode every prompt plainly and under every action.

    :param prompts: token ids of each; `progress` is called after each.
    :param shapes: how the engine's steps run; None: by the device.
    """
    reserved = ActionTable(tuple(dict.fromkeys(actions))).largest
    ways = (GREEDY, SAMPLED) if models.target.layout.dtype == torch.float32 else (GREEDY,)
    found: list[tuple[int, Action, bool, Sequence[int]]] = []
    with running_engine(models, reserved, config=EngineConfig(reserved=reserved, shapes=shapes)) as engine:
        for number, prompt in enumerate(prompts):
            for sampling in ways:
                plain = run(engine, fixed_request(prompt, OFF, max_new_tokens, sampling=sampling)).token_ids
                for action in actions:
                    request = fixed_request(prompt, action, max_new_tokens, sampling=sampling)
                    position = next(_places(plain, run(engine, request).token_ids), None)
                    if position is not None:
                        found.append((number, action, sampling is SAMPLED, plain[:position]))
            progress()
    # Afterwards, since a second thread that computes would slow the engine's down (see `assembly.load_models`).
    differences = [
        _difference(models.target, prompts[number], common, number, action, sampled=sampled)
        for number, action, sampled, common in found
    ]
    compared = len(prompts) * len(ways) * len(actions)
    return LosslessReport(models.info.dtype, len(prompts), compared, tuple(differences))


def _difference(
    target: Target, prompt: Sequence[int], common: Sequence[int], number: int, action: Action, *, sampled: bool
) -> Difference:
    """Measure the target where the outputs part: after the prompt and what they have in common."""
    best, gap = _gap(target, [*prompt, *common])
    return Difference(number, action, sampled, len(common), gap, _tolerance(target.layout.dtype, best))


def _places(first: Sequence[int], second: Sequence[int]) -> Iterator[int]:
    """Where the two differ."""
    return (place for place, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)


@torch.inference_mode()
def _gap(target: Target, tokens: Sequence[int]) -> tuple[float, float]:
    """The target's best logit after these tokens, and how far ahead of the second it is."""
    cache = SequenceCache(target.layout, len(tokens))
    logits = torch.empty(0)
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        logits = target.forward([causal_rows(cache, chunk, scored=1)])[0].logits[0].float()
        cache.commit(list(range(len(chunk))))
    best, second = logits.topk(2).values.tolist()
    return best, best - second


def _tolerance(dtype: torch.dtype, best: float) -> float:
    return 0.0 if dtype == torch.float32 else _TOLERANCE_STEPS * torch.finfo(dtype).eps * abs(best)
