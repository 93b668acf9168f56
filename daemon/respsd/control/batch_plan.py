"""The calibrated baseline by the number of sequences that share a step: the more there are, the less a tree is worth.

A lone sequence leaves most of a machine idle, which drafted tokens fill. The rows of several sequences fill it by
themselves, so from some number on small trees, and at last none, are faster.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from respsd.control.action import OFF, Action, ActionTable
from respsd.control.controller import Controller, Decision, Vector
from respsd.control.signals import batch_size
from respsd.control.static import StaticController

if TYPE_CHECKING:
    from respsd.control.cost_model import CostModel  # imports scipy, which takes a command's whole start-up time again

_LEAST_GAIN = 0.02
"""By which a tree must be faster than `off` to be drafted for several sequences."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """An action for every number of sequences."""

    steps: tuple[tuple[int, Action], ...]
    """From so many sequences on, this action; ascending from 1."""

    @property
    def alone(self) -> Action:
        """The action of a lone sequence: the baseline's own."""
        return self.steps[0][1]

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of its actions, the lone sequence's first."""
        return tuple(dict.fromkeys(action for _, action in self.steps))

    def at(self, sequences: int) -> Action:
        """The action where so many sequences share the step."""
        return next(action for least, action in reversed(self.steps) if least <= max(1, sequences))

    def __str__(self) -> str:
        return "; ".join(f"{action} from {least}" for least, action in self.steps)


def batch_plan(model: CostModel, alone: Action, actions: Collection[Action], most: int) -> BatchPlan:
    """Predict the best action for every number of sequences up to `most`.

    A larger batch never gets a larger tree. Steps of many sequences are extrapolated from those of a few, so a tree is
    taken only where it is ahead of `off` by more than the model is usually wrong: a plan that errs is a little slower
    than it could be, not slower than plain decoding.

    :param alone: the baseline, for a lone sequence.
    """
    steps, action = [(1, alone)], alone
    for least, last in _ranges(most):
        if action.is_off:
            break
        smaller = [each for each in actions if each.total_tokens <= action.total_tokens]
        action = _best(model, {action, *smaller}, last)
        if action != steps[-1][1]:
            steps.append((least, action))
    return BatchPlan(tuple(steps))


def _best(model: CostModel, actions: Collection[Action], sequences: int) -> Action:
    best = model.best({OFF, *actions}, sequences)
    least = model.log_speed(OFF, sequences) + math.log1p(max(_LEAST_GAIN, model.cost.fit_error))
    return best if model.log_speed(best, sequences) >= least else OFF


def _ranges(most: int) -> list[tuple[int, int]]:
    """2, 3, 4 to 5, 6 to 7, 8 to 11, ...: the best action changes slowly, and what holds for the last of a range holds
    for the others all the more."""
    ranges, least = [], 2
    while least <= most:
        last = least + max(1, 1 << (least.bit_length() - 2)) - 1
        ranges.append((least, last))
        least = last + 1
    return ranges


class PlannedController(StaticController):
    """The baseline under a plan: its own action for a lone sequence, and otherwise what the plan says."""

    def __init__(self, plan: BatchPlan, version: int | None, arm: str) -> None:
        super().__init__(plan.alone, version, arm)
        self._plan = plan
        table = None if version is None else ActionTable(plan.actions)
        self._decisions = {
            action: Decision(
                action=action,
                log_prob=0.0,
                arm=arm,
                policy_version=version,
                action_index=None if table is None else table.index(action),
                table_fingerprint=None if table is None else table.fingerprint,
            )
            for action in plan.actions
        }

    def choose(self, observation: Vector, uniform: float) -> Decision:  # noqa: ARG002 - the Protocol's signature
        """By the number of sequences in the step."""
        return self._decisions[self._plan.at(batch_size(observation))]


def planned(controller: Controller, plan: BatchPlan | None) -> Controller:
    """A controller of the baseline's version under the plan; itself where its action is not the plan's."""
    if plan is None or not isinstance(controller, StaticController) or controller.action != plan.alone:
        return controller
    return PlannedController(plan, controller.version, controller.arm)
