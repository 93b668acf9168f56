"""What a step of an action costs and earns on one machine with one pair of models; measured by `respsd calibrate`.

    tokens per second = tau(action) / seconds(action, context length, batch size)

seconds: a sum of terms with coefficients that are not negative, fitted by least squares. The target verifies all rows
of a step in one forward, whose time is piecewise linear in the rows, between the numbers of rows that were measured.

tau: committed tokens a step, greedy decoding, on the prompts that it was measured on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.optimize import nnls

from respsd.control.action import Action

Number = Annotated[float, Field(allow_inf_nan=False)]
Array = npt.NDArray[np.float64]
Sample = TypeVar("Sample", bound="StepSeconds")

_AS_GOOD = 0.02
"""Predicted speeds this near to each other are taken for equal."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A number for every action, from its values at some of them."""

    top_ks: tuple[int, ...]
    depths: tuple[int, ...]
    totals: tuple[int, ...]
    """The grid's values of each knob, ascending."""
    values: tuple[tuple[tuple[Number, ...], ...], ...]
    """[top_k, depth, total_tokens]."""

    def at(self, action: Action) -> float:
        """Between the grid's values linear in the logarithm (in the depth itself), beyond them as at the edge."""
        grid = np.array(self.values)  # [top_k, depth, total]
        grid = _along(grid, np.log(self.top_ks), math.log(action.top_k))
        grid = _along(grid, np.array(self.depths, float), float(action.depth))
        return float(_along(grid, np.log(self.totals), math.log(_nodes(action))))


def _along(grid: Array, knots: Array, value: float) -> Array:
    """Interpolate the first axis."""
    place = float(np.interp(value, knots, np.arange(len(knots))))
    low = min(int(place), len(knots) - 1)
    high = min(low + 1, len(knots) - 1)
    between: Array = grid[low] + (place - low) * (grid[high] - grid[low])
    return between


def _nodes(action: Action) -> int:
    """Rows that the target verifies, root included."""
    return min(action.total_tokens, action.pool)


@dataclass(frozen=True, slots=True)
class Growth:
    """How much of a tree's growth is really done where hopeless nodes are not expanded (see `engine.growth`)."""

    levels: Grid
    """Mean share of the `depth` expansions."""
    rows: Grid
    """Mean share of their `depth * top_k` rows."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What steps commit."""

    tau: Grid
    """Mean committed tokens of a step."""
    places: int
    """Places in answers at which a tree was drafted and compared with what the target says."""

    def of(self, action: Action) -> float:
        """Mean committed tokens of a step of the action."""
        return 1.0 if action.is_off else self.tau.at(action)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The time of one step of an action: measured, or what the model makes of it."""

    action: Action
    context: float
    """Tokens in the KV cache."""
    batch: int
    """Sequences that share the step, all under the same action."""
    draft: float
    verify: float
    other: float

    @property
    def total(self) -> float:
        """Seconds of decoding."""
        return self.draft + self.verify + self.other


def _draft_terms(action: Action, context: float, batch: int, growth: Growth | None) -> list[float]:
    """A fixed part and a part for each level, of the step and of each sequence; for each row that a level drafts, each
    candidate that it ranks, and the context that they read."""
    if action.is_off:
        return [0.0] * 8
    levels = action.depth * (growth.levels.at(action) if growth else 1.0)
    rows = action.depth * action.top_k * (growth.rows.at(action) if growth else 1.0)
    by_sequence = (1.0, levels, rows, rows * action.top_k, levels * context, rows * context)
    return [1.0, levels, *(batch * term for term in by_sequence)]


def _verify_terms(action: Action, context: float, batch: int, knots: Sequence[int]) -> list[float]:
    """A fixed part, the rows by pieces, and what reading the context costs each sequence and each row."""
    rows = _nodes(action) * batch
    ends = (*knots[1:], math.inf)
    pieces = [float(min(max(rows - low, 0), high - low)) for low, high in zip(knots, ends, strict=True)]
    return [1.0, *pieces, batch * context, rows * context]


def _other_terms(action: Action, batch: int) -> list[float]:
    """Sampling, walk and commit."""
    return [float(batch), float(batch * _nodes(action))]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step; immutable."""

    draft: tuple[Number, ...]
    verify: tuple[Number, ...]
    other: tuple[Number, ...]
    """Coefficients, seconds a unit of each term."""
    knots: tuple[int, ...]
    """Rows at which the slope of the verify time changes; the last piece is open."""
    growth: Growth | None
    """None: whole frontiers are expanded."""
    fit_error: Number
    """Root mean square of the relative error of each measured time, predicted by a fit to all the others."""

    @classmethod
    def fit(cls, samples: Sequence[StepSeconds], growth: Growth | None = None) -> StepCost:
        """Fit measured times; errors count relative to the whole step's time."""
        errors = []
        if len(samples) > 1:
            for left_out, sample in enumerate(samples):
                others = _fit([*samples[:left_out], *samples[left_out + 1 :]], growth, fit_error=0.0)
                predicted = others.seconds(sample.action, sample.context, sample.batch)
                errors.append(predicted / sample.total - 1)
        return _fit(samples, growth, fit_error=float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0)

    def step(self, action: Action, context: float, batch: int = 1) -> StepSeconds:
        """The parts of a step's time, where every sequence of the batch runs the action at that context length."""
        return StepSeconds(
            action,
            context,
            batch,
            draft=_sum(self.draft, _draft_terms(action, context, batch, self.growth)),
            verify=_sum(self.verify, _verify_terms(action, context, batch, self.knots)),
            other=_sum(self.other, _other_terms(action, batch)),
        )

    def seconds(self, action: Action, context: float, batch: int = 1) -> float:
        """A step's time."""
        return self.step(action, context, batch).total


def _sum(coefficients: Sequence[float], terms: Sequence[float]) -> float:
    return sum(c * t for c, t in zip(coefficients, terms, strict=True))


def _fit(samples: Sequence[StepSeconds], growth: Growth | None, fit_error: float) -> StepCost:
    sizes = sorted({_nodes(each.action) * each.batch for each in samples})
    # Behind the last knot the slope is that of the last measured piece.
    knots = tuple(sizes[:-1]) or (1,)
    weights = np.array([1 / each.total for each in samples])

    def solve(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, ...]:
        rows = np.array(terms) * weights[:, None]
        scale = np.linalg.norm(rows, axis=0)
        scale[scale == 0] = 1.0
        coefficients, _residual = nnls(rows / scale, np.array(seconds) * weights)
        return tuple((coefficients / scale).tolist())

    return StepCost(
        draft=solve([_draft_terms(s.action, s.context, s.batch, growth) for s in samples], [s.draft for s in samples]),
        verify=solve(
            [_verify_terms(s.action, s.context, s.batch, knots) for s in samples], [s.verify for s in samples]
        ),
        other=solve([_other_terms(s.action, s.batch) for s in samples], [s.other for s in samples]),
        knots=knots,
        growth=growth,
        fit_error=fit_error,
    )


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts the speed of every action."""

    cost: StepCost
    acceptance: Acceptance
    contexts: tuple[Number, ...]
    """Context lengths at which one sequence was timed: what actions are compared at."""

    def tokens_per_second(self, action: Action, context: float, batch: int = 1) -> float:
        """Of each sequence of the batch."""
        return self.acceptance.of(action) / self.cost.seconds(action, context, batch)

    def log_speed(self, action: Action, batch: int = 1) -> float:
        """Mean over `contexts` of the log of tokens per second, of a lone sequence or of each of a batch."""
        speeds = [self.tokens_per_second(action, context, batch) for context in self.contexts]
        return sum(map(math.log, speeds)) / len(speeds)

    def best(self, actions: Iterable[Action], batch: int = 1) -> Action:
        """The fastest action; of those within 2 % of it the one with the shortest step, which suffers least in a batch.

        So a drafter that gains less than that is not used where `off` is among the actions.
        """
        speeds = {action: self.log_speed(action, batch) for action in actions}
        least = max(speeds.values()) + math.log1p(-_AS_GOOD)
        as_good = [action for action, speed in speeds.items() if speed >= least]
        return min(as_good, key=lambda action: (self.cost.seconds(action, self.contexts[0], batch), action))
