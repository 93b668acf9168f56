from __future__ import annotations

import random

import numpy as np
import pytest
from support.engines import load_tiny

from respsd.calibration.design import actions_to_time
from respsd.calibration.timing import Setting, TimedStep, time_steps, typical_steps
from respsd.clock import SystemClock
from respsd.control.action import OFF, Action, paper_table
from respsd.engine.window import StepMeasure
from respsd.settings import ControlSettings

SMALL, LARGE = Action(8, 2, 4), Action(32, 5, 8)


def timed(
    turn: int, action: Action, nanoseconds: tuple[int, int, int], context: int = 100, setting: int = 0
) -> TimedStep:
    draft, verify, other = nanoseconds
    return TimedStep(turn, setting, action, context, StepMeasure(action, 0, 0, 1, draft, verify, other, batch_size=1))


def test_slow_passes_and_outliers_do_not_move_the_typical_step():
    """Pass 2 ran on a machine five times slower, and one step of pass 4 was held up for a second."""
    steps = []
    for number in range(1, 6):
        slow = 5 if number == 2 else 1
        held_up = 1_000_000_000 if number == 4 else 0
        steps.append(timed(number, OFF, (0, 40_000_000 * slow, 1_000_000 * slow), 100 + number))
        steps.append(timed(number, SMALL, (20_000_000 * slow, 60_000_000 * slow + held_up, 2_000_000 * slow)))
    off, small = typical_steps(steps)
    assert (off.action, off.draft, off.context) == (OFF, 0.0, 103.0)
    assert (off.verify, off.other) == (pytest.approx(0.040, rel=1e-6), pytest.approx(0.001, rel=1e-6))
    assert (small.draft, small.verify) == (pytest.approx(0.020, rel=1e-6), pytest.approx(0.060, rel=1e-6))


def test_an_action_that_only_ran_in_slow_passes_is_not_taken_for_slow():
    rng = np.random.default_rng(0)
    steps = []
    for number in range(1, 9):
        slow = 3.0 if number > 5 else 1.0
        noise = np.exp(rng.normal(0, 0.01, 2))
        steps.append(timed(number, OFF, (0, int(40_000_000 * slow * noise[0]), 0)))
        if number > 5:
            steps.append(timed(number, SMALL, (0, int(80_000_000 * slow * noise[1]), 0)))
    off, small = typical_steps(steps)
    assert small.total / off.total == pytest.approx(2.0, rel=0.05)


def test_settings_are_compared_as_if_all_passes_were_equally_slow():
    """The short context ran in all passes, the long one only in those on a busy machine."""
    steps = []
    for turn, slow in enumerate([1, 1, 3, 3, 1]):
        steps += [timed(turn, action, (0, ms * 1_000_000 * slow, 0)) for action, ms in ((OFF, 40), (SMALL, 80))]
        if slow > 1:
            steps.append(timed(turn, OFF, (0, 60_000_000 * slow, 0), 1000, setting=1))
    typical = {(each.context, each.action): each.total for each in typical_steps(steps)}
    assert typical[100, SMALL] / typical[100, OFF] == pytest.approx(2.0)
    assert typical[1000, OFF] / typical[100, OFF] == pytest.approx(1.5)


def test_of_a_passs_steps_the_median_counts():
    (off,) = typical_steps([timed(0, OFF, (0, ms * 1_000_000, 0)) for ms in (50, 40, 900)])
    assert off.total == pytest.approx(0.050)


def test_nothing_measured_is_nothing():
    assert typical_steps([]) == []


def test_every_action_is_timed_alone_and_in_a_batch():
    models = load_tiny()
    actions = (OFF, SMALL, LARGE)
    prompt = tuple(range(5, 45))
    settings = [Setting(prompt, 1, actions), Setting(prompt, 3, actions[:2])]
    steps = time_steps(models, settings, 600.0, SystemClock(), random.Random(0))  # ends with the last pass
    assert {(each.action, each.batch) for each in steps} == {*((action, 1) for action in actions), (OFF, 3), (SMALL, 3)}
    assert len(steps) == 5
    for each in steps:
        assert (each.draft > 0) or each.action.is_off
        assert each.verify > 0
        assert len(prompt) <= each.context <= len(prompt) + 216


@pytest.mark.parametrize("table", [ControlSettings().table(), paper_table()])
def test_the_design_has_off_and_reaches_the_ends_of_every_knob(table):
    chosen = actions_to_time(table.actions, 12)
    assert len(set(chosen)) == len(chosen) == 12
    assert chosen[0] == OFF
    for knob in ("total_tokens", "depth", "top_k"):
        values = {getattr(action, knob) for action in table if not action.is_off}
        timed_values = {getattr(action, knob) for action in chosen[1:]}
        assert {min(values), max(values)} <= timed_values <= values
    assert len({action.total_tokens for action in chosen}) >= 5


def test_a_design_of_more_actions_than_there_are_takes_all():
    assert set(actions_to_time((OFF, SMALL, LARGE), 12)) == {OFF, SMALL, LARGE}
    assert actions_to_time((OFF,), 12) == (OFF,)
