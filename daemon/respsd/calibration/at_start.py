"""The calibration that a starting daemon serves by: a stored one, or a new measurement, or none."""

from __future__ import annotations

import structlog

from respsd.calibration.measure import calibrate, setup_of
from respsd.calibration.record import Calibration, CalibrationFiles
from respsd.clock import Clock
from respsd.control.action import ActionTable
from respsd.engine.assembly import Models
from respsd.engine.memory import forget_frames, is_device_lost
from respsd.errors import RespsdError
from respsd.paths import CALIBRATIONS
from respsd.settings import Settings

log = structlog.get_logger(__name__)


def calibration_at_start(settings: Settings, models: Models, clock: Clock) -> Calibration | None:
    """What is known of these models on this machine; None where nothing is. Call it while no engine runs.

    A measurement that fails costs the start nothing but its time: the daemon serves by the stored one, else by its
    built-in baseline.
    """
    table = settings.control.table()
    if models.drafter is None or table.largest.is_off:
        return None
    files = CalibrationFiles(settings.state_dir / CALIBRATIONS)
    setup = setup_of(models, settings.engine.step_shapes)
    stored = files.load(setup, table.largest)
    wanted = {"auto": stored is None, "always": True, "never": False}[settings.calibration.at_start]
    if not wanted:
        if stored is not None:
            log.info("calibration_reused", file=str(files.path(setup)), created=stored.created)
        return stored
    log.info("calibrating", about_seconds=settings.calibration.seconds)
    try:
        calibration = calibrate(
            models,
            table,
            seconds=settings.calibration.seconds,
            max_running=settings.engine.max_running,
            clock=clock,
            shapes=settings.engine.step_shapes,
        )
    except (RespsdError, RuntimeError, MemoryError) as fault:  # memory that is too little, a fit that finds no end
        if is_device_lost(fault):
            raise  # nothing that the daemon would serve with works any more
        forget_frames(fault)
        log.error("calibration_failed", fault=str(fault) or type(fault).__name__)
        return stored
    say_baseline(calibration, table, settings.engine.max_running)
    try:
        files.save(calibration)
    except OSError as fault:
        log.error("calibration_not_stored", fault=str(fault))
    return calibration


def say_baseline(calibration: Calibration, table: ActionTable, max_running: int) -> None:
    """Log the action that was found best, by the number of sequences, and where no tree helps, that."""
    plan = calibration.plan(table, max_running)
    baseline = plan.alone
    log.info("calibrated", baseline=str(baseline), by_sequences=str(plan), fit_error=calibration.model.cost.fit_error)
    if baseline.is_off:
        log.warning("drafter_gains_nothing", detail="no tree makes decoding faster here; the baseline is 'off'")
