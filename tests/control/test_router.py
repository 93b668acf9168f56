from __future__ import annotations

import threading

import numpy as np
import pytest

from respsd.control.action import OFF, Action
from respsd.control.controller import Controller, Decision, Vector
from respsd.control.router import PolicyRouter
from respsd.control.static import StaticController
from respsd.engine.request import Speculation
from respsd.errors import InvalidRequest, PolicyRefused, UnknownPolicy

BASELINE = Action(16, 4, 4)
RESERVED = Action(64, 6, 8)
CHAMPION = Speculation()
NOTHING = np.zeros(1, np.float32)


class Policy:
    """A policy that chooses one action, or fails."""

    def __init__(self, version: int, arm: str = "champion", *, fault: Exception | None = None) -> None:
        self.version = version
        self.arm = arm
        self.fault = fault

    def choose(self, observation: Vector, uniform: float) -> Decision:
        if self.fault is not None:
            raise self.fault
        return Decision(Action(8, 3, 3), -1.5, self.arm, self.version, 1, "table")


def router(**others: Controller) -> PolicyRouter:
    loads: list[int] = []

    def load(version: int) -> Controller:
        loads.append(version)
        if version == 404:
            raise UnknownPolicy("404")
        return Policy(version, "named")

    controllers: dict[str, Controller] = {
        "baseline": StaticController(BASELINE, 1, "baseline"),
        "champion": StaticController(BASELINE, 1, "champion"),
        **others,
    }
    made = PolicyRouter(controllers, load, RESERVED, {"candidate": PolicyRefused(9, "its hash is wrong")})
    made.loads = loads  # type: ignore[attr-defined]
    return made


def decide(made: PolicyRouter, speculation: Speculation = CHAMPION) -> Decision:
    return made.resolve(speculation).current().choose(NOTHING, 0.5)


def test_a_request_without_wishes_gets_the_champion() -> None:
    decision = decide(router())
    assert (decision.action, decision.arm, decision.policy_version) == (BASELINE, "champion", 1)
    assert (decision.log_prob, decision.action_index) == (0.0, 0)


def test_a_fixed_action_has_no_version_and_no_table() -> None:
    decision = decide(router(), Speculation(action=Action(32, 4, 8)))
    assert decision == Decision(Action(32, 4, 8), 0.0, "fixed")


def test_off_and_the_largest_action_are_taken() -> None:
    assert decide(router(), Speculation(action=OFF)).action == OFF
    assert decide(router(), Speculation(action=RESERVED)).action == RESERVED


@pytest.mark.parametrize(
    ("action", "field", "limit"),
    [
        (Action(65, 6, 8), "action.total_tokens", "64"),
        (Action(64, 7, 8), "action.depth", "6"),
        (Action(64, 6, 9), "action.top_k", "8"),
        (Action(1, 3, 3), "action.total_tokens", "at least 2"),
        (Action(8, 3, 0), "action.top_k", "at least 1"),
    ],
)
def test_an_action_outside_the_limits_is_refused_with_the_limit(action: Action, field: str, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as refused:
        router().resolve(Speculation(action=action))
    assert refused.value.field == field


def test_an_action_and_a_policy_together_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        router().resolve(Speculation(action=OFF, policy="champion"))


def test_a_number_names_a_version_and_is_loaded_once() -> None:
    made = router()
    decision = decide(made, Speculation(policy="7"))
    decide(made, Speculation(policy="7"))
    assert (decision.policy_version, decision.arm) == (7, "named")
    assert made.loads == [7]  # type: ignore[attr-defined]


def test_only_the_most_recently_used_versions_are_kept() -> None:
    made = router()
    for version in (*range(10, 18), 10, 18, 10, 11):  # eight are kept: 11 has to go for 18
        decide(made, Speculation(policy=str(version)))
    assert made.loads == [*range(10, 18), 18, 11]  # type: ignore[attr-defined]


def test_versions_are_loaded_anew_once_one_may_have_changed() -> None:
    made = router()
    kept = made.resolve(Speculation(policy="7"))
    made.forget_named()
    decide(made, Speculation(policy="7"))
    assert made.loads == [7, 7]  # type: ignore[attr-defined]
    assert kept.current().choose(NOTHING, 0.5).policy_version == 7  # a request under way goes on


def test_a_version_that_loads_holds_up_nobody_and_is_not_kept_when_all_are_forgotten_meanwhile() -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load(version: int) -> Controller:
        loading.set()
        assert go_on.wait(60)
        loads.append(version)
        return Policy(version, "named")

    loads: list[int] = []
    baseline = StaticController(BASELINE, 1, "baseline")
    made = PolicyRouter({"baseline": baseline, "champion": baseline}, load, RESERVED)
    slow = threading.Thread(target=made.resolve, args=(Speculation(policy="7"),))
    slow.start()
    assert loading.wait(60)
    made.swap("champion", Policy(3))
    assert decide(made).policy_version == 3
    made.forget_named()
    go_on.set()
    slow.join()
    decide(made, Speculation(policy="7"))
    assert loads == [7, 7]


@pytest.mark.parametrize("name", ["404", "nobody", "", "-1", "1.0", "٣", "9" * 30])
def test_an_unknown_policy_is_refused_when_the_request_comes(name: str) -> None:
    with pytest.raises(UnknownPolicy):
        router().resolve(Speculation(policy=name))


def test_an_alias_that_cannot_serve_says_why() -> None:
    with pytest.raises(PolicyRefused, match="hash"):
        router().resolve(Speculation(policy="candidate"))


def test_a_swap_counts_from_the_next_window_of_running_requests() -> None:
    made = router()
    running = made.resolve(Speculation())
    window = running.current()
    made.swap("champion", Policy(2))
    assert window.choose(NOTHING, 0.5).policy_version == 1
    assert running.current().choose(NOTHING, 0.5).policy_version == 2
    assert made.resolve(Speculation(policy="champion")).current().version == 2


def test_a_named_version_and_a_fixed_action_outlive_swaps() -> None:
    made = router()
    named, fixed = made.resolve(Speculation(policy="7")), made.resolve(Speculation(action=OFF))
    made.swap("champion", Policy(2))
    assert named.current().version == 7
    assert fixed.current().choose(NOTHING, 0.5).action == OFF


def test_a_refused_alias_serves_again_after_a_swap() -> None:
    made = router()
    made.swap("candidate", Policy(10, "candidate"))
    assert decide(made, Speculation(policy="candidate")).policy_version == 10


@pytest.mark.parametrize("fault", [PolicyRefused(3, "its output is not finite"), ZeroDivisionError("anything")])
def test_a_failing_policy_costs_its_window_the_policy_and_is_counted(fault: Exception) -> None:
    made = router(learner=Policy(3, "learner", fault=fault))
    source = made.resolve(Speculation(policy="learner"))
    for _ in range(2):
        decision = source.current().choose(NOTHING, 0.5)
        assert (decision.action, decision.arm, decision.policy_version) == (BASELINE, "baseline", 1)
    assert source.current().version == 3
    assert made.faults() == {3: 2}


def test_swaps_from_other_threads_are_seen_whole() -> None:
    made = router()
    source = made.resolve(Speculation())
    versions = range(2, 402)

    def swap_all() -> None:
        for version in versions:
            made.swap("champion", Policy(version))
            made.swap("learner", Policy(version, "learner"))

    thread = threading.Thread(target=swap_all)
    thread.start()
    found = []
    while thread.is_alive():
        found.append(source.current().choose(NOTHING, 0.5).policy_version)
    thread.join()
    assert found == sorted(found)  # type: ignore[type-var]
    assert source.current().version == versions[-1]


def test_a_router_needs_a_baseline_and_a_champion() -> None:
    baseline = StaticController(BASELINE, 1, "baseline")
    with pytest.raises(ValueError, match="champion"):
        PolicyRouter({"baseline": baseline}, lambda _: baseline, RESERVED)
    with pytest.raises(ValueError, match="baseline"):
        PolicyRouter({"champion": baseline}, lambda _: baseline, RESERVED)


def test_requests_that_name_nothing_can_be_given_another_default() -> None:
    made = router(learner=Policy(3, "learner"))
    running = made.resolve(Speculation())
    made.use_by_default("learner")
    assert decide(made).arm == "learner"
    assert running.current().choose(NOTHING, 0.5).arm == "champion"
    made.use_by_default("7")
    assert (decide(made).arm, decide(made).policy_version) == ("named", 7)
    for unknown, fault in (("nobody", UnknownPolicy), ("candidate", PolicyRefused)):
        with pytest.raises(fault):
            made.use_by_default(unknown)
    assert decide(made).policy_version == 7


def test_serving_shows_the_version_of_each_alias() -> None:
    made = router(learner=Policy(3, "learner"))
    made.swap("champion", Policy(5))
    assert made.serving() == {"baseline": 1, "champion": 5, "learner": 3}


def test_a_forgotten_alias_names_nothing_and_as_the_default_means_the_champion() -> None:
    made = router(learner=Policy(4, "learner"))
    made.use_by_default("learner")
    assert decide(made).policy_version == 4
    made.forget("learner")
    with pytest.raises(UnknownPolicy, match="learner"):
        made.resolve(Speculation(policy="learner"))
    assert (decide(made).policy_version, made.default) == (1, "learner")
    made.swap("learner", Policy(5, "learner"))
    assert decide(made).policy_version == 5


@pytest.mark.parametrize("alias", ["baseline", "champion"])
def test_somebody_is_always_baseline_and_champion(alias: str) -> None:
    with pytest.raises(ValueError, match=alias):
        router().forget(alias)


def test_a_baseline_need_not_be_constant() -> None:
    made = PolicyRouter({"baseline": Policy(3, "baseline"), "champion": Policy(4)}, Policy, RESERVED)
    assert decide(made, Speculation(policy="baseline")).policy_version == 3
    assert decide(made).policy_version == 4
