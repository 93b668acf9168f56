from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, cycle, islice, repeat
from random import Random

import numpy as np
import pytest
from support.rollouts import ACTION, StillClock

from respsd.control.action import OFF, Action
from respsd.control.controller import Decision, Vector
from respsd.control.static import StaticController
from respsd.engine.window import StepMeasure
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.guards import GuardLimits, StepTimeGuard
from respsd.rollout.plan import NOTHING, Plan
from respsd.rollout.trials import Event, Shadowed, Trials, Tripped

STEPS = 4
SEEN: Vector = np.zeros(1, np.float32)


class Slow:
    """A policy that takes its time to choose."""

    def __init__(self, clock: StillClock, seconds: float) -> None:
        self.version = 2
        self._clock = clock
        self._seconds = seconds

    def choose(self, observation: Vector, uniform: float) -> Decision:
        self._clock.pass_seconds(self._seconds)
        return Decision(Action(4, 2, 2), 0.0, "candidate", 2)


class Bench:
    """Trials whose engine is a loop in a test."""

    def __init__(self, *, choosing: float = 0.0, seed: int = 1, champion: Action = ACTION) -> None:
        self.events: list[Event] = []
        self.in_force = True
        clock = StillClock()
        self.champion = StaticController(champion, 1, "champion")
        candidate = Arm("candidate", Slow(clock, choosing))
        self.contest = Contest("candidate", candidate, Arm("champion", self.champion))
        self.trials = Trials(
            lambda: self.champion,
            lambda contest: self.in_force,
            STEPS,
            self.events.append,
            rng=Random(seed),
            clock=clock,
            limits=GuardLimits(step_time_steps=3),
        )
        self.source = self.trials.enrol()

    def window(self) -> Decision:
        """A window of the one request, to its end."""
        self.trials.before_batch()
        decision = self.source.current().choose(SEEN, 0.5)
        while decision.block is not None and not decision.block.over:
            self.trials.before_batch()
        return decision

    def windows(self, count: int) -> list[str]:
        """Whether each of that many windows was under test, and whose: A, B or a dot."""
        decisions = [self.window() for _ in range(count)]
        return [
            "." if each.block is None or each.block.number is None else "AB"[each.policy_version == 2]
            for each in decisions
        ]

    def step(self, ns: int, batch_size: int = 1) -> None:
        """An engine step that took so long."""
        self.trials.after_step("champion", StepMeasure(ACTION, 7, 1, 2, 0, ns, 0, batch_size))
        self.trials.before_batch()

    def run(self, batch_sizes: Iterable[int], slowness: float = 1.0) -> int | None:
        """A window per batch size, steps longer the more sequences share them, the candidate's by `slowness` more.

        The number of the candidate's steps when a guard tripped; None where none did.
        """
        steps = 0
        for batch_size in batch_sizes:
            self.trials.before_batch()
            decision = self.source.current().choose(SEEN, 0.5)
            assert decision.block is not None
            is_subject = decision.policy_version == 2
            while not decision.block.over:
                steps += is_subject
                self.step(round(1_000 * batch_size * (slowness if is_subject else 1.0)), batch_size)
                if self.tripped():
                    return steps
        return None

    def tripped(self) -> list[str]:
        """The guards that did."""
        return [each.guard for each in self.events if isinstance(each, Tripped)]


def test_without_a_plan_the_default_serves() -> None:
    bench = Bench()
    assert bench.windows(5) == ["."] * 5
    assert bench.events == []


def test_a_plan_takes_its_share_of_quads_and_begins_at_once() -> None:
    """A candidate with 10 % of the windows is in 20 % of the quads."""
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.1),)))
    shown = "".join(bench.windows(4 * 50))
    quads = [shown[first : first + 4] for first in range(0, len(shown), 4)]
    assert quads[0] in ("ABBA", "BAAB")
    assert sum(quad != "...." for quad in quads) == 10 + 1
    assert {"....", "ABBA", "BAAB"} >= set(quads)


def test_at_half_of_the_windows_every_quad_is_a_comparison() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    assert "." not in bench.windows(40)


def test_contests_share_the_quads_by_their_shares() -> None:
    bench = Bench()
    holdout = Contest("baseline", bench.contest.control, Arm("baseline", StaticController(ACTION, 3, "baseline")))
    bench.trials.follow(Plan(((bench.contest, 0.4), (holdout, 0.1))))
    versions = [bench.window().policy_version for _ in range(4 * 100)]
    assert (versions.count(2), versions.count(3)) == (162, 38)  # 160 and 40, and the first listed begins


def test_a_change_of_plan_ends_what_it_leaves_out_within_the_step() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    bench.trials.before_batch()
    decision = bench.source.current().choose(SEEN, 0.5)
    bench.trials.follow(NOTHING)
    bench.trials.before_batch()
    assert decision.block is not None
    assert decision.block.over
    assert bench.windows(4) == ["."] * 4


def test_an_alias_moved_by_hand_counts_from_the_next_window_on() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    bench.windows(3)
    bench.in_force = False
    assert bench.windows(8) == ["."] * 8


def test_a_shadowed_candidate_is_asked_and_not_obeyed() -> None:
    bench = Bench(choosing=0.001)
    bench.trials.follow(Plan(shadow=bench.contest))
    assert bench.windows(3) == ["."] * 3
    assert bench.events == [Shadowed(bench.contest, 0.001, agreed=False)] * 3


def test_a_candidate_that_is_slow_to_choose_is_stopped() -> None:
    bench = Bench(choosing=0.02)
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    bench.windows(12)
    (tripped,) = bench.events
    assert isinstance(tripped, Tripped)
    assert tripped.guard == "policy-time"
    assert bench.windows(8) == ["."] * 8


def test_steps_three_times_the_controls_stop_a_candidate_within_the_step() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    tripped: list[Event] = []
    for _ in range(40):
        bench.trials.before_batch()
        decision = bench.source.current().choose(SEEN, 0.5)
        assert decision.block is not None
        while not decision.block.over:
            bench.step(4_000 if decision.policy_version == 2 else 1_000)
        tripped = [each for each in bench.events if isinstance(each, Tripped)]
        if tripped:
            break
    assert [each.guard for each in tripped] == ["step-time"]  # type: ignore[union-attr]
    assert decision.policy_version == 2
    assert bench.windows(4) == ["."] * 4


@pytest.mark.parametrize("seed", range(8))
def test_more_sequences_make_every_step_longer_and_that_is_no_fault_of_the_candidates(seed: int) -> None:
    """A crowd arrives after a quiet spell, goes, and comes again: the order of the blocks must not matter."""
    bench = Bench(seed=seed)
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    crowds = chain(repeat(1, 41), repeat(8, 40), repeat(1, 3), islice(cycle((8, 1, 3, 16)), 80))
    assert bench.run(crowds) is None
    assert not bench.tripped()


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8, 16])
def test_a_slow_candidate_is_stopped_by_its_third_slow_step_whatever_the_batch_size(batch_size: int) -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    assert bench.run([batch_size] * 20) is None
    assert bench.run([batch_size] * 8, slowness=4.0) == 3
    assert bench.tripped() == ["step-time"]


def test_a_slow_candidate_is_stopped_while_the_batch_size_goes_up_and_down() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    assert bench.run(islice(cycle((1, 8)), 60)) is None
    steps = bench.run(islice(cycle((1, 8, 8)), 24), slowness=4.0)
    assert steps is not None
    assert steps <= 2 * 3  # a row for each of the two buckets


def test_slow_steps_of_different_batch_sizes_are_not_one_row() -> None:
    guard = StepTimeGuard(GuardLimits(step_time_steps=3))
    for batch_size in (1, 2, 4, 8):
        for _ in range(8):
            guard.control_step(1_000 * batch_size, batch_size)
    assert [guard.subject_step(90_000, batch_size) for batch_size in (1, 2, 4, 8, 1, 2, 4, 8)] == [None] * 8
    assert "3 steps in a row took over 3 times the control's" in (guard.subject_step(90_000, 8) or "")


def test_a_batch_size_that_the_control_has_not_run_is_not_judged() -> None:
    guard = StepTimeGuard(GuardLimits(step_time_steps=3))
    for _ in range(64):
        guard.control_step(1_000, 1)
    assert [guard.subject_step(132_000, 8) for _ in range(20)] == [None] * 20


def test_a_step_with_a_tree_may_take_many_times_as_long_as_a_plain_one() -> None:
    """Where speculation is off, a candidate that brings it back is measured by its speed alone."""
    bench = Bench(champion=OFF)
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    assert bench.run([1] * 60, slowness=6.0) is None
    assert bench.tripped() == []


def test_one_slow_step_is_the_machines_fault() -> None:
    bench = Bench()
    bench.trials.follow(Plan(((bench.contest, 0.5),)))
    for number in range(60):
        bench.trials.before_batch()
        decision = bench.source.current().choose(SEEN, 0.5)
        assert decision.block is not None
        slow = number % 3 == 0
        while not decision.block.over:
            bench.step(50_000 if slow else 1_000)
            slow = False
    assert not [each for each in bench.events if isinstance(each, Tripped)]
