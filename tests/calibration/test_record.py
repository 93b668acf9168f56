from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from respsd.calibration.record import Calibration, CalibrationFiles, Setup
from respsd.control.action import EAGLE3, OFF, Action
from respsd.control.cost_model import Acceptance, CostModel, Grid, StepCost

SETUP = Setup("target", "drafter", "float32", "cpu", 2, "0.1.0")
COST = StepCost((0.0, 0.001, 0.002, 0.0, 1e-5, 0.0, 0.0, 0.0), (0.03, 0.001, 0.0, 0.0), (0.001, 0.0), (1,), None, 0.08)
TAU = Grid((2, 10), (1, 7), (4, 60), (((1.4, 1.5), (1.5, 1.8)), ((1.5, 1.9), (1.6, 3.5))))
ACCEPTANCE = Acceptance(TAU, 200)
MADE = Calibration(SETUP, CostModel(COST, ACCEPTANCE, (128.0,)), Action(60, 7, 10), "2026-11-30T12:00:00+00:00", 61.0)
LARGEST = Action(60, 7, 10)


@pytest.fixture
def files(tmp_path) -> CalibrationFiles:
    return CalibrationFiles(tmp_path / "calibrations")


def test_what_was_saved_is_loaded(files):
    path = files.save(MADE)
    assert files.load(SETUP, LARGEST) == MADE
    assert json.loads(path.read_text())["model"]["cost"]["fit_error"] == 0.08
    files.save(replace(MADE, seconds=5.0))
    assert files.load(SETUP, LARGEST) == replace(MADE, seconds=5.0)
    assert len(list(files.folder.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"target": "t"},
        {"drafter": "d"},
        {"dtype": "bfloat16"},
        {"device": "gpu"},
        {"threads": 4},
        {"engine_version": "2"},
        {"exact": True},
        {"shapes": "graphs"},
    ],
)
def test_each_part_of_the_setup_has_a_file_of_its_own(files, change):
    files.save(MADE)
    assert files.load(replace(SETUP, **change), LARGEST) is None


def test_trees_that_were_not_looked_at_are_not_covered(files):
    files.save(MADE)
    assert files.load(SETUP, Action(61, 7, 10)) is None
    assert files.load(SETUP, OFF) == MADE


@pytest.mark.parametrize("text", ["", "{}", "not JSON"])
def test_a_damaged_file_counts_as_none_and_is_named(files, text):
    path = files.save(MADE)
    path.write_text(text)
    with capture_logs() as logs:
        assert files.load(SETUP, LARGEST) is None
    assert logs[0]["event"] == "calibration_unreadable"
    assert logs[0]["file"] == str(path)


def test_numbers_that_are_none_are_refused(files):
    path = files.save(MADE)
    path.write_text(path.read_text().replace("0.08", "NaN"))
    with capture_logs():
        assert files.load(SETUP, LARGEST) is None


def test_a_file_of_another_format_is_not_used(files):
    files.save(replace(MADE, format=2))
    assert files.load(SETUP, LARGEST) is None


def test_the_baseline_is_the_best_of_table_off_and_eagle3():
    table = [Action(4, 1, 2)]
    speeds = {action: math.exp(MADE.model.log_speed(action)) for action in (OFF, *table, EAGLE3)}
    assert speeds[EAGLE3] > speeds[OFF]
    assert MADE.baseline(table) == max(speeds, key=lambda action: speeds[action])
    smaller = replace(MADE, largest=Action(16, 4, 4))
    assert smaller.baseline([Action(4, 1, 2)]) in (OFF, Action(4, 1, 2))


def test_the_plan_begins_with_the_baseline_and_is_never_predicted_to_lose_to_off():
    table = [OFF, Action(4, 1, 2), Action(16, 2, 4), EAGLE3]
    plan = MADE.plan(table, 16)
    assert plan.alone == MADE.baseline(table)
    for sequences in range(2, 17):
        chosen, off = (MADE.model.log_speed(action, sequences) for action in (plan.at(sequences), OFF))
        assert chosen >= off
    assert plan.at(16) != plan.alone
