from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import structlog
from support.rollouts import (
    BASELINE,
    CANDIDATE,
    CHAMPION,
    HOLDOUTS,
    LAST_GOOD,
    OFF_VERSION,
    MemoryPolicies,
    RolloutRig,
    make_rollout,
    observed,
)

from policy_store import Flags
from respsd.errors import StorageError
from respsd.rollout.contest import Kind
from respsd.rollout.plan import NOTHING, Plan
from respsd.rollout.trials import Tripped


def test_a_slower_candidate_is_quarantined_with_its_figures() -> None:
    rig = make_rollout()
    rig.propose()
    lose(rig, "candidate")
    ((move, version, intent),) = rig.policies.moves
    assert (move, version, intent.actor) == ("quarantine", CANDIDATE, "rollout")
    assert intent.evidence is not None
    assert intent.evidence["decision"] == "rollback"
    assert intent.evidence["upper"] < 0  # type: ignore[operator]
    assert intent.evidence["pairs"] <= 20  # type: ignore[operator]
    assert {"margin", "alpha", "clip", "workload", "lower", "mean"} <= intent.evidence.keys()
    assert "slower" in intent.reason
    assert rig.rollout.status().rollbacks == {"slower": 1}


def test_a_faster_candidate_is_promoted_at_the_last_stage_only() -> None:
    rig = make_rollout(ramp=(0.25, 0.5), gate_pairs=60)
    rig.propose()
    rig.observe(0.3, times=59)
    assert rig.made() == []
    rig.observe(0.3)
    assert rig.made() == [("promote", CANDIDATE)]
    assert rig.rollout.status().promotions == 1


def test_an_undecided_candidate_is_dropped_at_the_cap_and_not_quarantined() -> None:
    rig = make_rollout(max_pairs=10)
    rig.propose()
    for number in range(10):
        rig.observe(0.2 if number % 2 else -0.2)
    assert rig.made() == [("clear", None)]
    assert rig.rollout.status().rounds == ()


def test_the_ramp_climbs_gate_by_gate() -> None:
    rig = make_rollout(shadow_windows=3, ramp=(0.01, 0.05, 0.5), gate_pairs=2)
    rig.propose()
    stages = []

    def share() -> float:
        stages.append(rig.rollout.status().rounds[0].stage)
        return rig.rollout.status().rounds[0].share

    assert rig.rollout.trials.plan.shadow is not None
    rig.shadow(2)
    assert share() == 0.0
    rig.shadow(1)
    assert rig.rollout.trials.plan.shadow is None
    assert share() == 0.01
    rig.observe(0.0)
    assert share() == 0.01
    rig.observe(0.0)
    assert share() == 0.05
    rig.observe(0.0, times=2)
    assert share() == 0.5
    assert stages == [0, 1, 1, 2, 3]


def test_a_guard_rolls_back_at_once_and_says_which() -> None:
    rig = make_rollout()
    rig.propose()
    rig.trip()
    ((move, version, intent),) = rig.policies.moves
    assert (move, version) == ("quarantine", CANDIDATE)
    assert intent.evidence is not None
    assert intent.evidence["guard"] == "exception"
    assert "not finite" in intent.reason


def test_observations_beyond_a_bound_are_dropped_and_told_of_but_no_guard_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("respsd.rollout.rollout.MOST_UNHEARD", 3)
    rig = make_rollout(gate_pairs=100)
    rig.propose()
    contest = rig.contest()
    with structlog.testing.capture_logs() as lines:
        for _ in range(5):
            rig.rollout.take(observed(contest, 0.0))
        rig.rollout.pump()
        assert rig.rollout.status().rounds[0].pairs == 3
        for event in (*[observed(contest, 0.0)] * 4, Tripped(contest, "exception", "its output is not finite")):
            rig.rollout.take(event)
        rig.rollout.pump()
    assert rig.made() == [("quarantine", CANDIDATE)]
    told = [line["dropped_observations"] for line in lines if line["event"] == "rollout_held_up"]
    assert told == [2, 1]


def test_after_a_rollback_the_next_candidate_waits() -> None:
    rig = make_rollout(cooldown_seconds=60)
    rig.propose()
    rig.trip()
    rig.propose(8)
    assert rig.rollout.status().rounds == ()
    assert rig.rollout.status().waiting == "a pause after a rollback"
    rig.clock.pass_seconds(61)
    rig.rollout.pump()
    assert rig.rollout.status().rounds[0].subject_version == 8


def test_too_many_rollbacks_a_day_freeze_learning_until_somebody_unfreezes() -> None:
    rig = make_rollout(rollbacks_per_day=2, cooldown_seconds=0)
    for version in (7, 8):
        rig.propose(version)
        rig.trip()
    assert rig.made() == [("quarantine", 7), ("quarantine", 8), ("freeze", None)]
    rig.propose(9)
    assert rig.rollout.status().rounds == ()
    assert "frozen" in (rig.rollout.status().waiting or "")
    rig.policies.frozen = None
    rig.rollout.pump()
    assert rig.rollout.status().rounds[0].subject_version == 9


def test_a_rollback_by_hand_ends_the_evaluation_and_has_the_last_word() -> None:
    rig = make_rollout()
    rig.propose()
    rig.observe(0.3, times=7)
    contest = rig.contest()
    rig.policies.aliases["champion"] = LAST_GOOD
    rig.rollout.pump()
    assert rig.made() == [("clear", None)]
    assert contest not in rig.rollout.trials.plan.all_contests
    assert rig.rollout.status().rounds == ()


def test_a_version_rolled_back_by_hand_is_not_tried_again() -> None:
    rig = make_rollout(policies=MemoryPolicies(by_hand={CANDIDATE}))
    rig.propose()
    assert rig.rollout.status().rounds == ()
    assert "by hand" in (rig.rollout.status().waiting or "")


def test_a_pinned_champion_keeps_candidates_waiting() -> None:
    rig = make_rollout(policies=MemoryPolicies(pinned=CHAMPION))
    rig.propose()
    assert "pinned" in (rig.rollout.status().waiting or "")


def pin(rig: RolloutRig) -> None:
    rig.policies.pinned = CHAMPION


def freeze(rig: RolloutRig) -> None:
    rig.policies.frozen = "odd traffic"


@pytest.mark.parametrize("stop", [pin, freeze])
@pytest.mark.parametrize("shadow_windows", [0, 5])
def test_a_pin_or_a_freeze_ends_an_evaluation_under_way_without_a_verdict(
    stop: Callable[[RolloutRig], None], shadow_windows: int
) -> None:
    rig = make_rollout(holdout_baseline=0.02, ramp=(0.1, 0.5), gate_pairs=100, shadow_windows=shadow_windows)
    rig.propose()
    assert rig.contest() in rig.rollout.trials.plan.all_contests
    stop(rig)
    rig.rollout.pump()
    assert [each.kind for each in rig.rollout.trials.plan.all_contests] == ["baseline"]
    assert rig.made() == []
    assert rig.policies.aliases["candidate"] == CANDIDATE
    rig.policies.pinned = rig.policies.frozen = None
    rig.rollout.pump()
    assert (rig.contest().subject.version, rig.rollout.status().rounds[-1].pairs) == (CANDIDATE, 0)


@pytest.mark.parametrize("stop", [pin, freeze])
def test_what_was_measured_before_a_pin_or_a_freeze_is_not_acted_on_after_it(
    stop: Callable[[RolloutRig], None],
) -> None:
    rig = make_rollout()
    rig.propose()
    contest = rig.contest()
    for _ in range(100):
        rig.rollout.take(observed(contest, 0.4))
    stop(rig)
    rig.rollout.pump()
    assert rig.made() == []
    assert rig.policies.aliases["champion"] == CHAMPION


def test_an_evaluation_goes_on_while_nobody_can_tell_whether_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rollout()
    rig.propose()
    rig.observe(0.0, times=3)

    def locked() -> Flags:
        raise StorageError("the registry is locked")

    monkeypatch.setattr(rig.policies, "flags", locked)
    rig.observe(0.0)
    (round_,) = rig.rollout.status().rounds
    assert round_.pairs == 4


def test_a_newer_candidate_takes_the_place_of_the_one_under_test() -> None:
    rig = make_rollout()
    rig.propose()
    rig.observe(0.1, times=3)
    rig.propose(8)
    (round_,) = rig.rollout.status().rounds
    assert (round_.subject_version, round_.pairs) == (8, 0)
    assert rig.made() == []


def test_a_move_that_is_refused_is_not_tried_for_ever() -> None:
    rig = make_rollout()
    rig.propose()
    rig.policies.refuse = StorageError("the disk is full")
    rig.trip()
    rig.policies.refuse = None
    rig.rollout.pump()
    assert rig.made() == []
    assert "could not be carried out" in (rig.rollout.status().waiting or "")


def test_after_a_pump_that_failed_the_next_one_goes_on_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is still known, and the thread lives."""
    rig = make_rollout(holdout_baseline=0.02)
    rig.propose()
    rig.observe(0.0, times=2)
    before = rig.rollout.trials.plan.contests
    faults, flags = [RuntimeError("nobody foresaw this")], rig.policies.flags

    def fail_once() -> Flags:
        if faults:
            raise faults.pop()
        return flags()

    monkeypatch.setattr(rig.policies, "flags", fail_once)
    plans: list[Plan] = []
    monkeypatch.setattr(rig.rollout.trials, "follow", plans.append)
    rig.rollout.start()
    deadline = time.monotonic() + 60
    while len(plans) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    rig.rollout.close()
    assert plans[0] is NOTHING
    assert plans[1].contests == before
    assert {each.kind: each.pairs for each in rig.rollout.status().rounds} == {"baseline": 0, "candidate": 2}


def test_switched_off_it_evaluates_nothing() -> None:
    rig = make_rollout(enabled=False, holdout_off=0.1)
    rig.propose()
    assert rig.rollout.trials.plan.all_contests == ()


def lose(rig: RolloutRig, kind: Kind) -> None:
    for _ in range(40):
        if rig.made():
            return
        rig.observe(-0.4, kind=kind)
    raise AssertionError("nothing was decided")


@pytest.mark.parametrize(
    ("kind", "move"),
    [
        ("last-good", ("rollback", LAST_GOOD)),
        ("baseline", ("rollback", "baseline")),
        ("off", ("promote", OFF_VERSION)),
    ],
)
def test_a_champion_that_loses_to_what_it_must_beat_makes_room_for_it(kind: Kind, move: tuple[str, object]) -> None:
    rig = make_rollout(**HOLDOUTS)
    lose(rig, kind)
    assert rig.made() == [move]
    assert rig.rollout.status().speculation_off == (kind == "off")


def test_the_champion_is_held_against_others_only() -> None:
    kinds = {each.kind for each in make_rollout(**HOLDOUTS).rollout.trials.plan.all_contests}
    assert kinds == {"last-good", "baseline", "off"}
    fresh = MemoryPolicies(aliases={"baseline": BASELINE, "champion": BASELINE})
    kinds = {each.kind for each in make_rollout(policies=fresh, **HOLDOUTS).rollout.trials.plan.all_contests}
    assert kinds == {"off"}


def test_a_holdout_that_shows_no_loss_begins_afresh() -> None:
    rig = make_rollout(holdout_baseline=0.02, holdout_pairs=10)
    rig.observe(0.0, times=10, kind="baseline")
    (round_,) = rig.rollout.status().rounds
    assert (round_.kind, round_.pairs, rig.made()) == ("baseline", 0, [])


def test_holdouts_pause_while_a_candidate_climbs() -> None:
    rig = make_rollout(holdout_baseline=0.02, ramp=(0.1, 0.5), gate_pairs=1)
    rig.propose()
    assert [each.kind for each in rig.rollout.trials.plan.all_contests] == ["candidate"]
    rig.observe(0.0)
    assert [each.kind for each in rig.rollout.trials.plan.all_contests] == ["candidate", "baseline"]


@pytest.mark.parametrize("kind", ["candidate", "last-good", "baseline", "off"])
def test_a_champion_promoted_between_a_verdict_and_its_move_stays(kind: Kind) -> None:
    rig = make_rollout(**HOLDOUTS)
    rig.propose()
    rig.policies.just_before = lambda: rig.policies.aliases.update(champion=8)
    for _ in range(40):
        if rig.policies.aliases["champion"] == 8:
            break
        rig.observe(0.4 if kind == "candidate" else -0.4, kind=kind)
    assert rig.policies.aliases["champion"] == 8
    assert [move for move, _ in rig.made()] == ["clear"]  # the candidate was measured against another champion
    assert rig.rollout.status().rollbacks == {}
    assert {each.subject_version for each in rig.rollout.status().rounds} == {8}


def test_a_candidate_nominated_between_a_verdict_and_its_move_stays_and_is_evaluated() -> None:
    rig = make_rollout(max_pairs=10)
    rig.propose()
    rig.policies.just_before = lambda: rig.policies.aliases.update(candidate=8)
    for number in range(10):
        rig.observe(0.2 if number % 2 else -0.2)
    assert rig.made() == []
    assert rig.policies.aliases["candidate"] == 8
    assert [each.subject_version for each in rig.rollout.status().rounds] == [8]


def test_a_default_other_than_the_champion_is_left_alone() -> None:
    rig = make_rollout(policies=MemoryPolicies(default="baseline"))
    assert rig.rollout.enrol() is None
