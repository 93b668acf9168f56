"""The whole rollout on the real engine with the tiny pair; time is what each policy costs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path

import pytest
from support.engines import plain, request
from support.priced import MILLISECOND, priced_rollout

from respsd.control.action import Action
from respsd.control.controller import EndedBlock
from respsd.control.policy_change import Intent
from respsd.experience.database import open_log
from respsd.rollout.evidence import EvidenceLog
from respsd.rollout.status import RoundStatus

pytestmark = pytest.mark.slow

EQUAL = {1: MILLISECOND, 2: MILLISECOND}
PROMPTS = [[1, 5 + number, 9, 17 + 3 * number] for number in range(40)]


def test_a_bad_candidate_is_rolled_back_within_15_requests_and_no_token_changes(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, {1: MILLISECOND, 2: 2 * MILLISECOND}) as rig:
        rig.propose(2)

        for prompt in PROMPTS[:15]:
            tokens = rig.generate(request(prompt, 96))
            assert tokens == rig.generate(plain(prompt, 96))

            if "quarantine" in rig.events:
                break
        assert "quarantine" in rig.events
        entry = next(each for each in rig.store.audit() if each.event == "quarantine")
        assert (entry.actor, entry.to_version) == ("rollout", 2)
        assert entry.figures is not None
        assert entry.figures["decision"] == "rollback"
        assert "candidate" not in rig.store.aliases()
        assert rig.router.serving()["champion"] == 1


def test_streams_that_run_together_alternate_together_and_keep_their_tokens(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, {1: MILLISECOND, 2: 2 * MILLISECOND}) as rig:
        rig.propose(2)
        expected = [rig.generate(plain(prompt, 64)) for prompt in PROMPTS[:12]]
        with ThreadPoolExecutor(4) as clients:
            while "quarantine" not in rig.events:  # about three times
                got = list(clients.map(lambda prompt: rig.generate(request(prompt, 64)), PROMPTS[:12]))
                assert got == expected
        arms: dict[int, set[str]] = {}
        for window in rig.sink.transitions:
            assert window.decision.block is None or isinstance(window.decision.block, EndedBlock)
            if window.decision.block is not None and window.decision.block.number is not None:
                arms.setdefault(window.decision.block.number, set()).add(window.decision.arm)
        assert {len(each) for each in arms.values()} == {1}


def test_an_equal_candidate_is_not_rolled_back(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, EQUAL) as rig:
        rig.propose(2)
        for prompt in PROMPTS[:15]:
            rig.generate(request(prompt, 64))
        assert rig.rollout.status().rounds[0].pairs > 8
        assert "quarantine" not in rig.events


def test_a_good_candidate_is_promoted(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, {1: 2 * MILLISECOND, 2: MILLISECOND}) as rig:
        rig.propose(2)
        for prompt in PROMPTS:
            rig.generate(request(prompt, 96))
            if "promote" in rig.events:
                break
        assert rig.store.aliases()["champion"] == 2
        assert rig.router.serving()["champion"] == 2
        assert "promote" in rig.events


FAULTS = {
    "exception": ([ValueError("its output is not finite")], None),
    "illegal-action": ([], Action(999, 3, 3)),
}


@pytest.mark.parametrize("guard", FAULTS)
def test_a_candidate_that_fails_stops_within_its_step(tmp_path: Path, guard: str) -> None:
    with priced_rollout(tmp_path, EQUAL, shadow_windows=0) as rig:
        faults, action = FAULTS[guard]
        rig.loader.faults[2] = chain(repeat(None, 1), faults, repeat(None))
        if action is not None:
            rig.loader.actions[2] = action
        rig.propose(2)
        expected = rig.generate(plain(PROMPTS[0], 96))
        assert rig.generate(request(PROMPTS[0], 96)) == expected
        entry = next(each for each in rig.store.audit() if each.event == "quarantine")
        assert entry.figures is not None
        assert entry.figures["guard"] == guard
        failed = [w for w in rig.sink.transitions if w.decision.arm == "baseline"]
        assert [window.steps for window in failed] == [1]


def test_steps_three_times_as_slow_stop_a_candidate_before_any_statistics(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, {1: MILLISECOND, 2: 4 * MILLISECOND}, shadow_windows=0, step_time_steps=3) as rig:
        rig.propose(2)
        for prompt in PROMPTS[:4]:
            rig.generate(request(prompt, 96))
        entry = next(each for each in rig.store.audit() if each.event == "quarantine")
        assert entry.figures is not None
        assert entry.figures["guard"] == "step-time"


def test_a_shadowed_candidate_serves_nothing_and_is_dropped_where_it_fails(tmp_path: Path) -> None:
    with priced_rollout(tmp_path, EQUAL, shadow_windows=1000) as rig:
        rig.loader.faults[2] = chain(repeat(None, 5), [ValueError("odd")], repeat(None))
        rig.propose(2)
        rig.generate(request(PROMPTS[0], 96))
        assert {window.decision.policy_version for window in rig.sink.transitions} == {1}
        assert "quarantine" in rig.events


def evidence(folder: Path) -> EvidenceLog:
    return EvidenceLog(lambda: open_log(folder / "transitions.db"), "settings")


def test_a_restart_goes_on_from_the_recorded_evidence(tmp_path: Path) -> None:
    def standing(folder: Path, requests: int) -> RoundStatus:
        with priced_rollout(folder / "policies", EQUAL, evidence(folder)) as rig:
            if "candidate" not in rig.store.aliases():
                rig.propose(2)
            for prompt in PROMPTS[:requests]:
                rig.generate(request(prompt, 96))
            (round_,) = rig.rollout.status().rounds
            return round_

    before = standing(tmp_path, 8)
    after = standing(tmp_path, 0)
    assert before.pairs > 3
    assert after == before


def test_a_rollback_by_hand_during_an_evaluation_wins_and_holds(tmp_path: Path) -> None:
    prices = {1: MILLISECOND, 2: MILLISECOND, 3: MILLISECOND}
    with priced_rollout(tmp_path, prices) as rig:
        rig.operator.promote(2, Intent("operator:ann", "by hand"))
        rig.propose(3)
        rig.generate(request(PROMPTS[0], 96))
        rig.operator.rollback(Intent("operator:ann", "it smells"))
        for prompt in PROMPTS[:5]:
            rig.generate(request(prompt, 96))
        assert rig.store.aliases()["champion"] == 1
        assert "candidate" not in rig.store.aliases()
        assert {w.decision.policy_version for w in rig.sink.transitions[-20:]} == {1}
        by_hand = next(each for each in rig.store.audit() if each.event == "rollback")
        assert (by_hand.actor, by_hand.reason, by_hand.from_version) == ("operator:ann", "it smells", 2)
