from __future__ import annotations

import random

import pytest

from respsd.bench.comparison.sweep import coarse, neighbours, split_for_calibration, sweep
from respsd.bench.questions import QuestionSet
from respsd.control.action import OFF, Action, ActionTable
from respsd.errors import InvalidRequest

TABLE = ActionTable.grid((4, 8, 16, 32, 64), (1, 2, 3, 4, 5, 6), (2, 4, 8, 16), with_off=True)
BLOCKS = [(QuestionSet("q", ((1,), (2,), (3,), (4,))), (number,)) for number in range(4)]


def test_the_coarse_round_has_one_action_for_each_size():
    actions = coarse(TABLE)
    assert actions[0] == OFF
    assert [action.total_tokens for action in actions[1:]] == [4, 8, 16, 32, 64]
    assert Action(16, 4, 4) in actions
    assert set(actions) <= set(TABLE)


def test_neighbours_differ_by_one_notch():
    assert set(neighbours(Action(16, 4, 4), TABLE)) == {
        OFF,
        Action(8, 4, 4),
        Action(32, 4, 4),
        Action(16, 3, 4),
        Action(16, 5, 4),
        Action(16, 4, 8),
    }  # 16,4,2 is no action of the table
    assert {action.total_tokens for action in neighbours(OFF, TABLE)} == {4}


def peak(best: Action):
    """Speeds that fall with the distance from the best action, and differ from block to block."""

    def measure(action, block):
        distance = abs(action.depth - best.depth) + abs(action.top_k - best.top_k) / 4
        distance += abs(action.total_tokens - best.total_tokens) / 16
        return (20.0 + block[1][0]) * 0.95**distance

    return measure


@pytest.mark.parametrize("best", [Action(16, 5, 8), Action(32, 6, 4), Action(8, 3, 4)])
def test_the_fastest_action_is_found_without_measuring_them_all(best):
    measured: list[Action] = []

    def measure(action, block):
        measured.append(action)
        return peak(best)(action, block)

    report = sweep(TABLE, BLOCKS, 1, measure, random.Random(0))
    assert report.best == best
    assert len(set(measured)) < len(TABLE) / 2
    assert report.rounds[-1].relative_speeds[0] == (best, 1.0)


def test_off_is_found_where_every_tree_is_slower():
    report = sweep(TABLE, BLOCKS, 1, lambda action, _: 30.0 if action.is_off else 10.0, random.Random(0))
    assert report.best == OFF


def test_what_is_far_behind_is_not_measured_on_every_block():
    counts: dict[Action, int] = {}

    def measure(action, block):
        counts[action] = counts.get(action, 0) + 1
        return 10.0 if action.total_tokens <= 16 else 1.0

    sweep(ActionTable(tuple(coarse(TABLE))), BLOCKS, 1, measure, random.Random(0))
    assert counts[Action(64, 6, 8)] == 2
    assert counts[Action(16, 4, 4)] >= 4


def test_blocks_whose_answers_were_too_short_do_not_count():
    report = sweep(
        TABLE,
        BLOCKS,
        1,
        lambda action, block: None if block[1][0] else peak(Action(16, 4, 4))(action, block),
        random.Random(0),
    )
    assert report.best == Action(16, 4, 4)
    with pytest.raises(InvalidRequest, match="calibration"):
        sweep(TABLE, BLOCKS, 1, lambda *_: None, random.Random(0))


def test_calibration_questions_are_not_measured():
    sets = [QuestionSet("a", ((1,), (2,), (3,))), QuestionSet("b", ((4,), (5,)), (("x",), ("y", "z")))]
    measured, calibration = split_for_calibration(sets, 2)
    assert [one.prompts for one in measured] == [((1,), (2,)), ((4,),)]
    assert [one.prompts for one in calibration] == [((3,),), ((5,),)]
    assert calibration[1].turns == (("y", "z"),)
    with pytest.raises(InvalidRequest, match="'b' has 2 questions"):
        split_for_calibration(sets, 3)
