"""A whole calibration, on the tiny pair."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from structlog.testing import capture_logs
from support.engines import load_tiny

from respsd.calibration import at_start
from respsd.calibration.at_start import calibration_at_start
from respsd.calibration.measure import calibrate, setup_of
from respsd.calibration.record import Calibration, CalibrationFiles
from respsd.clock import SystemClock
from respsd.control.action import OFF, Action, ActionTable
from respsd.errors import CalibrationFailed
from respsd.settings import ControlSettings, Settings
from respsd.settings_learning import CalibrationSettings

TABLE = ActionTable.grid((4, 8, 16), (2, 3, 4), (2, 4), with_off=True)
CONTROL = ControlSettings(total_tokens=(4, 8, 16), depth=(2, 3, 4), top_k=(2, 4))


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(load_tiny(), TABLE, seconds=2.0, max_running=2, clock=SystemClock())


def test_every_action_gets_a_speed(calibration):
    model = calibration.model
    assert all(model.tokens_per_second(action, 60.0, batch) > 0 for action in TABLE for batch in (1, 2))
    assert calibration.baseline(TABLE) in TABLE.actions
    assert model.acceptance.places > 0
    assert model.acceptance.of(Action(16, 4, 4)) >= model.acceptance.of(Action(4, 2, 2)) > 1.0
    assert 1 <= len(model.contexts) <= 2
    assert all(context < 256 for context in model.contexts)


def test_it_says_what_it_holds_for(calibration):
    assert calibration.setup == setup_of(load_tiny())
    assert (calibration.setup.dtype, calibration.setup.device) == ("float32", "cpu")
    assert calibration.covers(Action(16, 4, 4))
    assert not calibration.covers(Action(16, 5, 4))


def test_a_table_without_trees_has_nothing_to_calibrate():
    with pytest.raises(CalibrationFailed, match="off"):
        calibrate(load_tiny(), ActionTable((OFF,)), seconds=1.0, max_running=1, clock=SystemClock())


@pytest.fixture
def measured(calibration, monkeypatch) -> list[float]:
    """How often it was measured anew: measuring itself is tested above."""
    calls: list[float] = []

    def pretend(models, table, *, seconds, **_: object) -> Calibration:
        calls.append(seconds)
        return calibration

    monkeypatch.setattr(at_start, "calibrate", pretend)
    return calls


def settings(folder, at_start: str = "auto", control: ControlSettings = CONTROL) -> Settings:
    return Settings(state_dir=folder, control=control, calibration=CalibrationSettings(at_start=at_start, seconds=7.0))


def start(folder, *options: object) -> Calibration | None:
    return calibration_at_start(settings(folder, *options), load_tiny(), SystemClock())  # type: ignore[arg-type]


def test_the_first_start_measures_and_later_ones_reuse_it(tmp_path, measured, calibration):
    assert start(tmp_path) == start(tmp_path) == calibration
    assert measured == [7.0]


def test_a_start_can_be_made_to_measure_or_not_to(tmp_path, measured, calibration):
    assert start(tmp_path, "never") is None
    assert measured == []
    assert start(tmp_path, "always") == start(tmp_path, "always") == start(tmp_path, "never") == calibration
    assert len(measured) == 2


def test_larger_trees_than_were_measured_are_measured_anew(tmp_path, measured):
    start(tmp_path)
    larger = ControlSettings(total_tokens=(4, 8, 16), depth=(2, 3, 5), top_k=(2, 4))
    start(tmp_path, "auto", larger)
    assert len(measured) == 2


def test_another_setup_is_measured_anew(tmp_path, measured, calibration):
    files = CalibrationFiles(tmp_path / "calibrations")
    other = dataclasses.replace(calibration, setup=dataclasses.replace(calibration.setup, threads=64))
    files.save(other)
    start(tmp_path)
    assert len(measured) == 1
    assert files.load(other.setup, TABLE.largest) == other


def test_without_a_drafter_there_is_nothing_to_measure(tmp_path, measured):
    assert calibration_at_start(settings(tmp_path), load_tiny(with_drafter=False), SystemClock()) is None
    assert measured == []


def fail_with(monkeypatch, fault: BaseException) -> None:
    def fail(*_: object, **__: object) -> Calibration:
        raise fault

    monkeypatch.setattr(at_start, "calibrate", fail)


FAULTS = [
    CalibrationFailed("too slow"),
    RuntimeError("Maximum number of iterations reached."),
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_measurement_that_fails_leaves_the_start_without_one(tmp_path, monkeypatch, fault):
    fail_with(monkeypatch, fault)
    with capture_logs() as logs:
        assert start(tmp_path) is None
    assert [line["event"] for line in logs][-2:] == ["calibrating", "calibration_failed"]
    assert logs[-1]["fault"]


def test_a_measurement_that_fails_leaves_the_start_with_the_stored_one(tmp_path, measured, monkeypatch, calibration):
    start(tmp_path)
    fail_with(monkeypatch, RuntimeError("not enough memory"))
    assert start(tmp_path, "always") == calibration


def test_a_device_that_is_lost_ends_the_start(tmp_path, monkeypatch):
    fail_with(monkeypatch, torch.AcceleratorError("an illegal memory access was encountered"))
    with pytest.raises(torch.AcceleratorError):
        start(tmp_path)


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path, measured, calibration):
    (tmp_path / "calibrations").write_text("in the way")
    with capture_logs() as logs:
        assert start(tmp_path) == calibration
    assert "calibration_not_stored" in [line["event"] for line in logs]
