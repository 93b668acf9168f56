from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.control.action import OFF, Action, ActionTable
from respsd.control.cost_model import Acceptance, CostModel, Grid, Growth, StepCost, StepSeconds
from respsd.settings import ControlSettings

ACTIONS = (
    OFF,
    Action(4, 3, 2),
    Action(8, 2, 4),
    Action(16, 4, 4),
    Action(16, 8, 2),
    Action(32, 3, 8),
    Action(64, 8, 16),
    Action(128, 5, 32),
)


def true_step(action: Action, context: float, batch: int) -> StepSeconds:
    """A machine: 30 ms and 1 ms a row up to 16 rows, half of that beyond; 4 ms and 3 ms a level for a draft."""
    rows = action.total_tokens * batch
    verify = 0.030 + 0.001 * min(rows, 16) + 0.0005 * max(rows - 16, 0) + 1e-5 * context * batch
    draft = 0.0 if action.is_off else batch * (0.004 + 0.003 * action.depth + 2e-5 * action.depth * action.top_k)
    return StepSeconds(action, context, batch, draft, verify, 0.001 * batch)


def measured(noise: float = 0.0) -> list[StepSeconds]:
    rng = np.random.default_rng(0)
    steps = [true_step(a, context, 1) for context in (128.0, 1024.0) for a in ACTIONS]
    steps += [true_step(a, 128.0, 4) for a in ACTIONS[:4]]
    return [
        StepSeconds(
            s.action,
            s.context,
            s.batch,
            *(part * math.exp(rng.normal(0, noise)) for part in (s.draft, s.verify, s.other)),
        )
        for s in steps
    ]


def test_a_machine_of_the_models_own_kind_is_found():
    cost = StepCost.fit(measured())
    for action, context, batch in [
        (OFF, 512, 1), (Action(16, 6, 4), 300, 1), (Action(64, 4, 8), 2000, 1), (Action(8, 2, 2), 128, 4)
    ]:  # fmt: skip
        assert cost.seconds(action, context, batch) == pytest.approx(true_step(action, context, batch).total, rel=0.02)
    assert cost.fit_error < 0.05


def test_the_fit_error_says_how_wrong_predictions_are():
    noisy = StepCost.fit(measured(noise=0.1))
    assert 0.05 < noisy.fit_error < 0.3


@given(st.sampled_from(ControlSettings().table().actions), st.floats(1, 8192), st.integers(1, 8))
def test_costs_are_positive_and_grow_with_everything(action, context, batch):
    cost = COST
    here = cost.seconds(action, context, batch)
    assert here > 0
    assert cost.seconds(action, context * 2, batch) >= here
    assert cost.seconds(action, context, batch + 1) >= here
    if not action.is_off:
        assert cost.seconds(Action(action.total_tokens + 8, action.depth, action.top_k), context, batch) >= here
        assert cost.seconds(Action(action.total_tokens, action.depth + 1, action.top_k), context, batch) >= here
        assert cost.step(OFF, context, batch).draft == 0.0


COST = StepCost.fit(measured(noise=0.1))
AXES = ((2, 8), (0, 1, 2), (4, 16))
GRID = Acceptance(Grid(*AXES, (((1.4, 1.5), (1.5, 1.6), (1.6, 1.8)), ((1.5, 1.7), (1.7, 2.0), (1.8, 2.4)))), places=100)


def one_tau(tau: float) -> Acceptance:
    return Acceptance(Grid((2,), (1,), (4,), (((tau,),),)), places=100)


def test_tau_stands_in_the_grid_and_between_its_values():
    assert GRID.of(OFF) == 1.0
    assert GRID.of(Action(4, 1, 2)) == pytest.approx(1.5)
    assert GRID.of(Action(16, 2, 8)) == pytest.approx(2.4)
    assert GRID.of(Action(8, 2, 8)) == pytest.approx((1.8 + 2.4) / 2)  # 8 lies half way from 4 to 16
    assert GRID.of(Action(4, 1, 4)) == pytest.approx((1.5 + 1.7) / 2)
    assert GRID.of(Action(64, 5, 32)) == pytest.approx(2.4)  # beyond the grid as at its edge


def test_a_tree_has_no_more_tokens_than_its_pool():
    assert GRID.of(Action(64, 0, 2)) == GRID.of(Action(3, 0, 2))
    assert COST.seconds(Action(64, 0, 2), 128) == COST.seconds(Action(3, 0, 2), 128)


def model(acceptance: Acceptance = GRID) -> CostModel:
    return CostModel(StepCost.fit(measured()), acceptance, (128.0, 1024.0))


def test_speed_is_tau_over_time():
    action, made = Action(16, 2, 8), model()
    assert made.tokens_per_second(action, 128.0) == pytest.approx(2.4 / made.cost.seconds(action, 128.0))
    slow, fast = (made.tokens_per_second(action, context) for context in (1024.0, 128.0))
    assert math.exp(made.log_speed(action)) == pytest.approx(math.sqrt(slow * fast))


def test_the_best_action_is_the_fastest():
    made = model()
    table = ActionTable((OFF, Action(4, 2, 8), Action(16, 2, 8), Action(16, 2, 2)))
    assert made.best(table) == max(table, key=made.log_speed)
    assert made.best(table) != OFF


def test_off_is_best_where_drafts_gain_nothing_worth_having():
    useless = one_tau(1.0)
    assert model(useless).best(ACTIONS) == OFF
    cost = model().cost
    even = cost.seconds(Action(4, 1, 2), 128.0) / cost.seconds(OFF, 128.0)
    hardly = one_tau(even * 1.005)
    assert CostModel(cost, hardly, (128.0,)).best([OFF, Action(4, 1, 2)]) == OFF
    clearly = one_tau(even * 1.1)
    assert CostModel(cost, clearly, (128.0,)).best([OFF, Action(4, 1, 2)]) == Action(4, 1, 2)


def test_levels_and_rows_that_are_never_drafted_cost_nothing():
    """Small trees draft half the levels and a quarter of the rows; the fit sees through it and predicts large ones."""
    half = Growth(Grid((2,), (4,), (4, 128), (((0.5, 1.0),),)), Grid((2,), (4,), (4, 128), (((0.25, 1.0),),)))

    def drafted(action: Action) -> StepSeconds:
        levels = action.depth * half.levels.at(action) if action != OFF else 0.0
        return StepSeconds(action, 128.0, 1, 0.003 * levels, 0.030 + 0.001 * action.total_tokens, 0.001)

    cost = StepCost.fit([drafted(action) for action in ACTIONS], half)
    for action in (Action(4, 6, 2), Action(128, 6, 16)):
        assert cost.seconds(action, 128.0) == pytest.approx(drafted(action).total, rel=0.03)
