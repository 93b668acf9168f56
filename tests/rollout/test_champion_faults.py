"""A champion whose policy fails, heard of by itself and by every holdout that it is in."""

from __future__ import annotations

import pytest
from support.rollouts import CHAMPION, HOLDOUTS, LAST_GOOD, make_rollout

from respsd.rollout.trials import Tripped


def test_a_champion_whose_policy_fails_is_dropped_once() -> None:
    rig = make_rollout()
    for _ in range(3):
        rig.rollout.on_fault(CHAMPION, ValueError("its output is not finite"))
    rig.rollout.pump()
    assert rig.made() == [("rollback", None)]
    assert rig.rollout.status().rollbacks == {"exception": 1}


def test_a_fault_of_the_champion_moves_it_once_however_many_holdouts_it_is_in() -> None:
    """Each of them reports it; the version that takes the champion's place has nothing to do with it."""
    rig = make_rollout(**HOLDOUTS)
    for _ in range(3):
        rig.rollout.on_fault(CHAMPION, ValueError("its output is not finite"))
    rig.rollout.pump()
    assert rig.made() == [("rollback", LAST_GOOD)]
    assert rig.policies.aliases["champion"] == LAST_GOOD
    assert rig.rollout.status().rollbacks == {"exception": 1}
    assert {each.subject_version for each in rig.rollout.status().rounds} == {LAST_GOOD}


def test_a_champion_that_fails_in_the_holdout_of_plain_decoding_makes_room_for_last_good() -> None:
    """Its fault says nothing against speculation, which stays on."""
    rig = make_rollout(holdout_off=0.02)
    rig.rollout.on_fault(CHAMPION, ValueError("its output is not finite"))
    rig.rollout.pump()
    assert rig.made() == [("rollback", None)]
    assert rig.policies.aliases["champion"] == LAST_GOOD
    assert not rig.rollout.status().speculation_off


@pytest.mark.parametrize("holdouts", [{}, {"holdout_last_good": 0.02}, {"holdout_off": 0.02}])
def test_after_a_champion_failed_the_next_candidate_waits(holdouts: dict[str, float]) -> None:
    rig = make_rollout(cooldown_seconds=60, **holdouts)
    rig.rollout.on_fault(CHAMPION, ValueError("its output is not finite"))
    rig.rollout.pump()
    rig.propose(8)
    assert rig.rollout.status().waiting == "a pause after a rollback"
    rig.clock.pass_seconds(61)
    rig.rollout.pump()
    assert [each.subject_version for each in rig.rollout.status().rounds if each.kind == "candidate"] == [8]


def test_what_is_heard_of_a_champion_after_somebody_replaced_it_moves_nobody() -> None:
    rig = make_rollout(**HOLDOUTS)
    contests = rig.rollout.trials.plan.all_contests
    for contest in contests:
        rig.rollout.take(Tripped(contest, "step-time", "8 steps in a row"))
    rig.policies.aliases["champion"] = 8
    rig.rollout.pump()
    assert rig.made() == []
    assert rig.policies.aliases["champion"] == 8
