"""Where the time of our engine's steps goes, and how deep its drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from respsd.bench.comparison.conversation import BlockResult
from respsd.engine.window import StepMeasure

_NS_PER_MS = 1e6
_NS_PER_SECOND = 1e9


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Of the steps of one row."""

    steps: int
    """One for each stream and step."""
    step_ms_p50: float
    draft_share: float
    """Of the steps' time, as are the next three: growing the draft trees."""
    verify_share: float
    """The target's forward."""
    overhead_share: float
    """The rest of a step: opening windows, walking the trees, commit, and handing tokens out."""
    policy_share: float
    """Observations and choices of actions, a part of the overhead."""
    drafted_tokens: float
    """A step, mean."""
    acceptance: tuple[float, ...]
    """Share of the steps that reached it in which a drafted token at depth 1, 2, ... was accepted.

    A step counts for the depths that its action allows.
    """


def step_figures(results: Sequence[BlockResult]) -> StepFigures | None:
    """Sum up; None where transformers answered."""
    steps = [step for result in results for step in result.steps]
    if not steps:
        return None
    # A step's time is booked to every stream in it; its share of the engine's time is one of them.
    weights = np.array([1 / step.batch_size for step in steps])
    draft, verify, other = (
        float((np.array([getattr(step, part) for step in steps]) * weights).sum())
        for part in ("draft_ns", "verify_ns", "other_ns")
    )
    total = draft + verify + other
    return StepFigures(
        steps=len(steps),
        step_ms_p50=float(np.median([_step_ns(step) for step in steps])) / _NS_PER_MS,
        draft_share=draft / total,
        verify_share=verify / total,
        overhead_share=other / total,
        policy_share=sum(result.policy_seconds for result in results) * _NS_PER_SECOND / total,
        drafted_tokens=float(np.mean([step.drafted_tokens for step in steps])),
        acceptance=acceptance_by_depth(steps),
    )


def acceptance_by_depth(steps: Sequence[StepMeasure]) -> tuple[float, ...]:
    """For each depth the share of steps that accepted so many drafted tokens, of those whose trees were that deep."""
    drafted = [step for step in steps if not step.applied.is_off]
    deepest = max((step.applied.depth + 1 for step in drafted), default=0)
    shares = []
    for depth in range(1, deepest + 1):
        deep_enough = [step for step in drafted if step.applied.depth + 1 >= depth]
        shares.append(sum(step.accepted_tokens >= depth for step in deep_enough) / len(deep_enough))
    return tuple(shares)


def _step_ns(step: StepMeasure) -> int:
    return step.draft_ns + step.verify_ns + step.other_ns
