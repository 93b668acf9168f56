from __future__ import annotations

from random import Random

from respsd.control.action import Action
from respsd.control.static import StaticController
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.pairing import Measured
from respsd.rollout.phases import PhaseClock, PlacedBlock, Quad

STEPS = 4
CONTEST = Contest(
    "candidate",
    Arm("candidate", StaticController(Action(8, 3, 3), 2, "candidate")),
    Arm("champion", StaticController(Action(8, 3, 3), 1, "champion")),
)


class Bench:
    """A clock and the quads that it finished."""

    def __init__(self, seed: int = 0, contest: Contest | None = CONTEST) -> None:
        self.quads: list[Quad] = []
        self.clock = PhaseClock(STEPS, Random(seed), lambda: contest, self.quads.append)

    def window(self, *who: str, last: str = "") -> list[PlacedBlock]:
        """A window of each participant, opened in the same step, to the block's end."""
        self.clock.before_batch()
        placed = [self.clock.place(each) for each in who]
        for _ in range(STEPS - 1):
            self.clock.before_batch()
        for block in placed:
            self.clock.book(block, Measured(3, 6, 100), last=block.participant == last)
        return placed


def test_a_quad_is_abba_or_baab_by_a_coin() -> None:
    orders = set()
    for seed in range(20):
        bench = Bench(seed)
        orders.add("".join("B" if bench.window("r")[0].arm is CONTEST.subject else "A" for _ in range(4)))
    assert orders == {"ABBA", "BAAB"}


def test_a_block_is_over_after_its_steps_and_not_before() -> None:
    clock = Bench().clock
    clock.before_batch()
    block = clock.place("r")
    seen = [block.over]
    for _ in range(STEPS - 1):
        clock.before_batch()
        seen.append(block.over)
    assert seen == [False, False, False, True]


def test_sequences_that_run_together_have_one_arm_and_end_together() -> None:
    bench = Bench()
    bench.clock.before_batch()
    first = bench.clock.place("r")
    bench.clock.before_batch()
    second = bench.clock.place("s")  # joins in the middle
    assert (second.number, second.arm, second.ends_at) == (first.number, first.arm, first.ends_at)


def test_quads_follow_each_other_in_a_long_request_and_each_is_handed_on_once() -> None:
    bench = Bench()
    numbers = [bench.window("r")[0].number for _ in range(9)]
    assert numbers == list(range(9))
    assert [quad.first_block for quad in bench.quads] == [0, 4]
    assert all(quad.observation() is not None for quad in bench.quads)


def test_the_next_lone_request_begins_a_quad_of_its_own() -> None:
    bench = Bench()
    for _ in range(2):
        bench.window("r")
    bench.window("r", last="r")
    (block,) = bench.window("s")
    assert (block.number, block.position) == (4, 0)
    assert [quad.observation() is not None for quad in bench.quads] == [True]  # the pair that was whole


def test_a_request_that_joins_takes_part_from_there() -> None:
    bench = Bench()
    bench.window("r")
    bench.window("r")
    blocks = bench.window("r", "s")
    assert {block.position for block in blocks} == {2}


def test_a_participant_that_vanished_does_not_hold_the_clock() -> None:
    """It was cancelled between two windows, so that no last window told of it."""
    bench = Bench()
    bench.window("gone")
    for _ in range(3 * STEPS):
        bench.clock.before_batch()
    (block,) = bench.window("r")
    assert block.position == 0


def test_a_cancelled_quad_ends_its_windows_and_is_no_evidence() -> None:
    bench = Bench()
    bench.clock.before_batch()
    block = bench.clock.place("r")
    bench.clock.cancel()
    assert block.over
    (following,) = bench.window("r")
    assert following.position == 0
    assert bench.quads == []


def test_without_a_contest_windows_only_keep_in_step() -> None:
    bench = Bench(contest=None)
    blocks = [*bench.window("r"), *bench.window("r", "s")]
    assert [(block.number, block.arm, block.over) for block in blocks] == [(None, None, True)] * 3
    assert bench.window("r", last="r")
    bench.window("s", last="s")
    assert bench.quads == []
