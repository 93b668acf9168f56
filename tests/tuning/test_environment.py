from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from respsd.control.action import EAGLE3, OFF, Action, ActionTable, paper_table
from respsd.control.static import StaticController
from respsd.settings_learning import LearningSettings
from respsd.tuning.environment import PREDICTABLE, SURPRISING, Environment, Machine, StepCosts, TextKind
from respsd.tuning.simulation import Simulation, simulate

DEEP, WIDE = Action(32, 8, 8), Action(128, 3, 32)


def test_tokens_and_speed_by_hand() -> None:
    kind, action = TextKind("coin", 0.5, 0.0), Action(7, 1, 3)  # two levels
    assert kind.tokens(action) == pytest.approx(1 + 0.5 + 0.25)
    assert kind.tokens(OFF) == 1
    costs = StepCosts(base=10, level=1, branch=0.1, token=0.5, context_doubling=1000)
    assert costs.milliseconds(action, 0) == pytest.approx((2 * 1.3, 13.5))
    assert costs.milliseconds(action, 1000) == pytest.approx((5.2, 27))
    environment = Environment(ActionTable((OFF, action)), (kind,), costs)
    assert environment.tokens_per_second(kind, action) == pytest.approx(1.75 / 0.0161)
    assert environment.optimum() == pytest.approx(1.75 / 0.0161)


def test_a_wider_level_holds_the_token_more_often() -> None:
    assert TextKind("k", 0.2, 0.5).acceptance(Action(128, 3, 32)) == pytest.approx(1 - 0.8 * (127 / 4) ** -0.5)


def test_the_kind_of_text_decides_which_end_of_the_table_is_best() -> None:
    environment = Environment(paper_table())
    best = [max(environment.table, key=lambda a: environment.tokens_per_second(kind, a)) for kind in environment.kinds]
    assert best == [DEEP, WIDE]
    assert environment.tokens_per_second(PREDICTABLE, WIDE) < 0.75 * environment.tokens_per_second(PREDICTABLE, DEEP)
    assert environment.tokens_per_second(SURPRISING, DEEP) < 0.75 * environment.tokens_per_second(SURPRISING, WIDE)
    assert environment.constant(environment.best_constant()) < 0.9 * environment.optimum()


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("action", [DEEP, WIDE, OFF])
def test_served_windows_have_the_speed_that_the_closed_form_says(kind: int, action: Action) -> None:
    environment = Environment(ActionTable((DEEP, WIDE, OFF)), costs=StepCosts(context_doubling=1e12))
    machine, controller = Machine(environment, seed=1), StaticController(action, 1, "baseline")
    windows = [window for _ in range(150) for window in machine.serve(kind, lambda: controller)]
    whole = [window.record for window in windows if not window.record.truncated]
    steps = sum(record.steps for record in whole)
    text = environment.kinds[kind]
    assert sum(record.committed_tokens for record in whole) / steps == pytest.approx(text.tokens(action), rel=0.03)
    milliseconds = sum(record.draft_ns + record.verify_ns for record in whole) / steps / 1e6
    expected = sum(environment.costs.milliseconds(action, 0)) * np.exp((0.35**2 + 0.1**2) / 2)
    assert milliseconds == pytest.approx(expected, rel=0.15)
    assert {window.true_speed for window in windows} == {environment.tokens_per_second(text, action)}


def test_the_noise_is_that_of_requests_and_steps() -> None:
    environment = Environment(ActionTable((DEEP,)), costs=StepCosts(context_doubling=1e12), mean_tokens=2000)
    machine, controller = Machine(environment, seed=2), StaticController(DEEP, 1, "baseline")
    lanes = [
        [np.log(w.record.verify_ns / w.record.steps) for w in machine.serve(0, lambda: controller)] for _ in range(300)
    ]
    assert np.std([np.mean(lane) for lane in lanes]) == pytest.approx(0.35, rel=0.15)
    within = np.concatenate([np.array(lane) - np.mean(lane) for lane in lanes if len(lane) > 5])
    assert within.std() == pytest.approx(0.1 / np.sqrt(10), rel=0.15)


def test_requests_end_with_their_budget_exactly() -> None:
    machine = Machine(Environment(ActionTable((DEEP,)), mean_tokens=100), seed=3)
    controller = StaticController(DEEP, 1, "baseline")
    lengths = [sum(w.record.committed_tokens for w in machine.serve(0, lambda: controller)) for _ in range(400)]
    assert np.mean(lengths) == pytest.approx(100, rel=0.2)
    assert min(lengths) >= 1


def test_a_seed_gives_the_same_traffic_and_another_one_other_traffic() -> None:
    controller = StaticController(EAGLE3, 1, "baseline")

    def traffic(seed: int) -> list[object]:
        machine = Machine(Environment(paper_table()), seed)
        return [w.record for _ in range(3) for w in machine.serve(0, lambda: controller)]

    assert traffic(5) == traffic(5) != traffic(6)


@pytest.mark.slow
def test_the_loop_learns_which_of_two_actions_suits_which_text() -> None:
    environment = Environment(ActionTable((DEEP, WIDE)))
    result = simulate(environment, LearningSettings(), windows=2000, seed=0)
    assert result.greedy > 0.97 * result.optimum
    assert result.greedy > result.best_constant
    assert result.greedy_actions == {"predictable": str(DEEP), "surprising": str(WIDE)}
    assert result.updates >= 6


@pytest.mark.slow
def test_where_all_actions_are_equal_nothing_is_lost_or_gained() -> None:
    environment = Environment(ActionTable((DEEP, WIDE)), only=EAGLE3)
    result = simulate(environment, LearningSettings(), windows=1500, seed=0)
    assert result.greedy == pytest.approx(result.optimum)
    assert result.best_constant == pytest.approx(result.optimum)
    measured = result.measured
    assert abs(measured["last_quarter"] - measured["first_quarter"]) < 4 * measured["standard_error"]


def test_every_arm_serves_every_kind_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the baseline shown one kind only, its speed would say nothing about the learner's."""
    simulation = Simulation(tmp_path, Environment(ActionTable((DEEP, WIDE)), mean_tokens=20), LearningSettings(), 0)
    served: dict[str, list[int]] = {"baseline": [], "learner": []}
    serve, arm = simulation._machine.serve, "learner"
    monkeypatch.setattr(
        simulation._machine, "serve", lambda kind, choose: served[arm].append(kind) or serve(kind, choose)
    )
    for number in range(200):
        arm = "baseline" if number % 2 == 0 else "learner"
        simulation._serve(arm, number)
    for kinds in served.values():
        assert 30 < sum(kinds) < 70
