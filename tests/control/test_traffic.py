from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from structlog.testing import capture_logs

from policy_store import StoredPolicy
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.network import log_softmax
from respsd.control.observation import ObservationSchema
from respsd.control.resps import RespsController
from respsd.control.router import Pinned, PolicyRouter
from respsd.control.static import StaticController
from respsd.control.traffic import Traffic
from respsd.engine.request import Speculation
from respsd.errors import UnknownPolicy

LARGEST = Action(128, 8, 32)
ANY = Speculation()
BIAS = (0.0, 1.0, 3.0, 2.0)


def no_versions(version: int) -> StaticController:
    raise UnknownPolicy(str(version))


@pytest.fixture
def learner(make_policy: Callable[..., StoredPolicy], schema: ObservationSchema) -> Callable[..., RespsController]:
    def make(temperature: float = 1.0, version: int = 5) -> RespsController:
        policy = make_policy(*BIAS, version=version)
        return RespsController(policy, "learner", schema, LARGEST, temperature=temperature)

    return make


def router(learner: RespsController | None) -> PolicyRouter:
    controllers = {alias: StaticController(Action(16, 4, 4), 1, alias) for alias in ("baseline", "champion")}
    return PolicyRouter(controllers | ({} if learner is None else {"learner": learner}), no_versions, LARGEST)


def arm(traffic: Traffic, schema: ObservationSchema, speculation: Speculation = ANY) -> str:
    return traffic.resolve(speculation).current().choose(np.zeros(schema.width, np.float32), 0.5).arm


def test_the_share_of_explorers_is_the_one_asked_for(learner, schema):
    traffic = Traffic(router(learner()), 0.2, random.Random(7).random)
    arms = [arm(traffic, schema) for _ in range(5000)]
    assert set(arms) == {"learner", "champion"}
    assert arms.count("learner") / len(arms) == pytest.approx(0.2, abs=0.02)  # 3.5 standard deviations


@pytest.mark.parametrize(("share", "expected"), [(0.0, "champion"), (1.0, "learner")])
def test_no_share_and_all_of_it_leave_nothing_to_chance(learner, schema, share, expected):
    draws = iter([0.0, 1.0 - 2**-53])
    traffic = Traffic(router(learner()), share, lambda: next(draws))
    assert [arm(traffic, schema), arm(traffic, schema)] == [expected, expected]


def test_the_share_can_change_while_serving(learner, schema):
    traffic = Traffic(router(learner()), 0.0, lambda: 0.5)
    assert arm(traffic, schema) == "champion"
    traffic.share = 0.6
    assert arm(traffic, schema) == "learner"


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        (Speculation(exploration_opt_out=True), "champion"),
        (Speculation(policy="baseline"), "baseline"),
        (Speculation(policy="champion"), "champion"),
        (Speculation(action=OFF), "fixed"),
    ],
)
def test_requests_that_opted_out_or_chose_are_no_explorers_and_in_no_trial(learner, schema, speculation, expected):
    def trial() -> None:
        raise AssertionError("it was offered to a trial")

    traffic = Traffic(router(learner()), 1.0, lambda: 0.0, trial)
    assert arm(traffic, schema, speculation) == expected


def test_a_check_draws_nothing_and_enrols_nobody(learner):
    def forbidden() -> float:
        raise AssertionError("it drew")

    traffic = Traffic(router(learner()), 1.0, forbidden, forbidden)  # type: ignore[arg-type]
    traffic.check(ANY)
    with pytest.raises(UnknownPolicy):
        traffic.check(Speculation(policy="nobody"))


def test_a_trial_may_take_what_is_no_explorer(learner, schema):
    draws = iter([0.05, 0.5, 0.5])
    answers = iter([Pinned(StaticController(OFF, 9, "candidate")), None])
    traffic = Traffic(router(learner()), 0.1, lambda: next(draws), lambda: next(answers))
    assert [arm(traffic, schema) for _ in range(3)] == ["learner", "candidate", "champion"]


def test_a_trial_that_fails_costs_the_request_nothing(learner, schema):
    def trial() -> None:
        raise RuntimeError("broken")

    traffic = Traffic(router(learner()), 0.0, lambda: 0.5, trial)
    with capture_logs() as logs:
        assert arm(traffic, schema) == "champion"
    assert [line["event"] for line in logs] == ["trial_failed"]


def test_without_a_learner_the_default_serves_and_it_is_said_once(learner, schema):
    alone = router(None)
    traffic = Traffic(alone, 1.0, lambda: 0.0)
    with capture_logs() as logs:
        assert [arm(traffic, schema) for _ in range(3)] == ["champion"] * 3
    assert [line["event"] for line in logs] == ["no_exploration"]
    alone.swap("learner", learner())
    assert arm(traffic, schema) == "learner"


def test_an_explorer_keeps_its_version_through_a_swap(learner, schema):
    routed = router(learner(version=5))
    traffic = Traffic(routed, 1.0, lambda: 0.0)
    running = traffic.resolve(ANY)
    routed.swap("learner", learner(version=6))
    assert running.current().version == 5
    assert traffic.resolve(ANY).current().version == 6


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_log_probs_are_those_of_the_distribution_that_was_sampled(learner, schema, temperature):
    """Their frequencies over many windows, too: not only a formula applied twice."""
    table = ActionTable((OFF, Action(8, 3, 3), Action(16, 4, 4), Action(32, 5, 8)))
    source = Traffic(router(learner(temperature)), 1.0, lambda: 0.0).resolve(ANY)
    expected = log_softmax(np.array(BIAS) / temperature)
    uniform, seen, windows = random.Random(3).random, np.zeros(4), 20_000
    observation = np.zeros(schema.width, np.float32)
    for _ in range(windows):
        decision = source.current().choose(observation, uniform())
        index = table.index(decision.action)
        assert decision.log_prob == pytest.approx(expected[index], abs=1e-6)
        seen[index] += 1
    assert seen / windows == pytest.approx(np.exp(expected), abs=0.015)
