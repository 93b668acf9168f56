"""The baseline by the number of sequences: what the cost model says of a machine, and what requests then get."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import load_tiny, no_versions, request, running

from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.control.batch_plan import BatchPlan, PlannedController, batch_plan
from respsd.control.cost_model import Acceptance, CostModel, Grid, StepCost, StepSeconds
from respsd.control.router import PolicyRouter
from respsd.control.signals import SignalTracker, batch_size
from respsd.control.static import StaticController
from respsd.engine.api import Engine
from respsd.engine.loop import LoopLimits
from respsd.engine.request import Speculation

SMALL, MIDDLE, LARGE = Action(4, 2, 2), Action(16, 4, 4), Action(64, 5, 8)
TABLE = ActionTable((OFF, SMALL, MIDDLE, LARGE))
TAUS = ((1.6, 2.4, 3.0),)
ACCEPTANCE = Acceptance(Grid((4,), (4,), (4, 16, 64), (TAUS,)), places=100)
PLAN = BatchPlan(((1, MIDDLE), (3, SMALL), (6, OFF)))


def machine(row_ms: float) -> StepCost:
    """30 ms for the weights, and for each row what is given; a draft takes 1 ms a level."""
    samples = [
        StepSeconds(
            action,
            context,
            batch,
            draft=0.001 * action.depth,
            verify=0.030 + row_ms / 1000 * batch * action.total_tokens + 1e-7 * context * batch,
            other=0.0,
        )
        for context, batch in ((128.0, 1), (1024.0, 1), (128.0, 4))
        for action in TABLE
    ]
    return StepCost.fit(samples)


def plan_of(cost: StepCost, most: int = 32) -> BatchPlan:
    model = CostModel(cost, ACCEPTANCE, (128.0, 1024.0))
    return batch_plan(model, model.best(TABLE), TABLE.actions, most)


def test_trees_shrink_and_end_as_rows_come_to_cost_more_than_weights():
    plan = plan_of(machine(row_ms=0.12), most=64)
    assert plan.actions == (LARGE, MIDDLE, SMALL, OFF)
    assert plan.at(64) == OFF
    totals = [action.total_tokens for _, action in plan.steps]
    assert totals == sorted(totals, reverse=True)


def test_where_rows_cost_nothing_the_tree_stays():
    assert plan_of(machine(row_ms=0.001)).at(32) == LARGE


def test_a_lone_sequence_at_a_time_leaves_nothing_to_plan():
    assert plan_of(machine(row_ms=0.12), most=1).steps == ((1, LARGE),)


@given(st.floats(0.005, 2.0), st.integers(2, 64))
def test_no_tree_is_planned_that_is_predicted_to_be_slower_than_off(row_ms, sequences):
    cost = machine(row_ms)
    model, plan = CostModel(cost, ACCEPTANCE, (128.0, 1024.0)), plan_of(cost, 64)
    action = plan.at(sequences)
    assert model.log_speed(action, sequences) >= model.log_speed(OFF, sequences)


def test_a_model_that_is_often_wrong_must_promise_more():
    sure = machine(row_ms=0.05)
    gains = math.exp(plan_gain(sure, 8))
    assert 1.02 < gains < 2
    assert plan_of(sure).at(8) != OFF
    assert plan_of(dataclasses.replace(sure, fit_error=gains)).at(8) == OFF


def plan_gain(cost: StepCost, sequences: int) -> float:
    model = CostModel(cost, ACCEPTANCE, (128.0, 1024.0))
    return model.log_speed(plan_of(cost).at(sequences), sequences) - model.log_speed(OFF, sequences)


@pytest.mark.parametrize(
    ("sequences", "action"), [(1, MIDDLE), (2, MIDDLE), (3, SMALL), (5, SMALL), (6, OFF), (99, OFF)]
)
def test_decisions_go_by_the_batch_of_the_observation(sequences, action):
    seen = SignalTracker().vector(10, 100, sequences, 0.0)
    assert batch_size(seen) == sequences
    decision = PlannedController(PLAN, 7, "champion").choose(seen, 0.5)
    assert (decision.action, decision.arm, decision.policy_version, decision.log_prob) == (action, "champion", 7, 0.0)
    assert decision.table_fingerprint == ActionTable((MIDDLE, SMALL, OFF)).fingerprint
    assert ActionTable((MIDDLE, SMALL, OFF))[decision.action_index or 0] == action


def planned_router(plan: BatchPlan | None = PLAN, **others: StaticController) -> PolicyRouter:
    arms = {alias: StaticController(MIDDLE, 1, alias) for alias in ("baseline", "champion")}
    return PolicyRouter({**arms, **others}, no_versions, Action(128, 8, 32), plan=plan)


def chosen(router: PolicyRouter, speculation: Speculation, sequences: int = 8) -> Action:
    seen = SignalTracker().vector(10, 100, sequences, 0.0)
    return router.resolve(speculation).current().choose(seen, 0.5).action


def test_the_baseline_goes_by_its_plan_and_what_names_an_action_does_not():
    router = planned_router(eagle3=StaticController(EAGLE3, 2, "eagle3"))
    assert chosen(router, Speculation()) == OFF
    assert chosen(router, Speculation(policy="baseline")) == OFF
    assert chosen(router, Speculation(), sequences=1) == MIDDLE
    assert chosen(router, Speculation(action=MIDDLE)) == MIDDLE
    assert chosen(router, Speculation(policy="eagle3")) == EAGLE3
    router.swap("champion", StaticController(LARGE, 3, "champion"))
    assert chosen(router, Speculation()) == LARGE
    router.swap("champion", StaticController(MIDDLE, 1, "champion"))
    assert chosen(router, Speculation()) == OFF
    assert chosen(planned_router(plan=None), Speculation()) == MIDDLE


def wait_until_all_came(engine: Engine, arrived: threading.Event, count: int) -> None:
    """On the engine's thread: no step before so many requests are there, or the first may be over before the last."""
    while not arrived.is_set():
        load = engine.load()
        if load.running + load.waiting == count:
            arrived.set()
        time.sleep(0.001)


def test_many_streams_decode_plainly_where_one_drafts():
    arrived = threading.Event()
    # Unpaced, so that a busy machine does not let the prompts in one after the other.
    limits = LoopLimits(max_running=8, prefill_slowdown=1e9)
    with running(load_tiny(), planned_router(), persistence=2, limits=limits) as rig:
        prompts = [[1, 40, 17, 20 + number] for number in range(8)]
        alone = [rig.generate(request(prompt, 16)).token_ids for prompt in prompts]
        assert {step.applied for _, step in rig.hooks.steps if not step.applied.is_off} >= {MIDDLE}
        rig.hooks.steps.clear()
        rig.hooks.before_batch = lambda: wait_until_all_came(rig.engine, arrived, len(prompts))  # type: ignore[method-assign]
        with ThreadPoolExecutor(8) as clients:
            together = list(clients.map(lambda prompt: rig.generate(request(prompt, 16)).token_ids, prompts))
        # A window that opened in a smaller batch keeps its action for its two steps.
        crowded = [step for _, step in rig.hooks.steps if step.batch_size == 8]
        assert together == alone
        assert crowded[-1].applied == OFF
        assert sum(step.applied.is_off for step in crowded) >= len(crowded) / 2
