"""The daemon's trainer: updates in a process of their own, whose versions the policy operator takes into service."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import structlog

from policy_store import PolicyStore, StoreError
from respsd import __version__
from respsd.calibration.record import Calibration
from respsd.clock import Clock
from respsd.control.action import Action
from respsd.control.operator import PolicyOperator
from respsd.control.policy_change import Intent
from respsd.errors import StorageError
from respsd.paths import TRANSITIONS
from respsd.scheduling.spawned_update import SpawnedUpdate
from respsd.settings import Settings
from respsd.tuning.baseline_speed import SpeedPoint
from respsd.tuning.experience import count_new_windows
from respsd.tuning.lineage import learner_watermark
from respsd.tuning.report import UpdateReport
from respsd.tuning.runner import UpdateRunner

ACTOR = "update"
"""Who the audit log says moved an alias."""
_CONTEXTS = (64, 256, 1024, 4096)
_SEED_BITS = 31

log = structlog.get_logger(__name__)


def daemon_trainer(
    settings: Settings,
    store: PolicyStore,
    operator: PolicyOperator,
    clock: Clock,
    speeds: Callable[[], Sequence[SpeedPoint]] = tuple,
    observe: Callable[[UpdateReport], None] = lambda _report: None,
    is_evaluating: Callable[[], bool] = lambda: False,
) -> SpawnedUpdate:
    """Put it together; nothing runs yet.

    :param speeds: the baseline's calibrated speeds
    :param observe: told of every update that ended
    :param is_evaluating: whether a candidate is being compared with the champion now
    """
    runner = UpdateRunner(
        settings.state_dir,
        settings.learning,
        lambda version, report: _publish(operator, version, report, is_evaluating),
        clock=clock,
        seed=lambda: secrets.randbits(_SEED_BITS),
        code_version=__version__,
        calibration=speeds,
    )
    return SpawnedUpdate(runner, lambda: _new_windows(settings, store), observe)


def calibrated_speeds(
    calibration: Calibration | None, action_at: Callable[[int], Action], max_running: int
) -> tuple[SpeedPoint, ...]:
    """The baseline's speed at some context lengths and batch sizes; none without a calibration.

    :param action_at: the baseline's action where so many sequences share a step
    """
    if calibration is None:
        return ()
    return tuple(
        SpeedPoint(context, batch, calibration.model.tokens_per_second(action_at(batch), context, batch))
        for context in _CONTEXTS
        for batch in sorted({1, max(max_running // 2, 1), max_running})
    )


def _publish(operator: PolicyOperator, version: int, report: UpdateReport, is_evaluating: Callable[[], bool]) -> None:
    """Make a version the learner, and the candidate where it may be one and no other is under evaluation.

    Updates may follow each other faster than a comparison comes to an end: if each of them replaced the candidate, none
    would ever end, and those broken off would have spent the day's error probability. A later update proposes its own.
    """
    evidence = {"windows_used": report.windows_used, "kl": report.kl, "effective_share": report.effective_share}
    operator.set_learner(version, Intent(ACTOR, f"trained on {report.windows_used} windows", evidence))
    if not report.candidate:
        return
    if is_evaluating():
        log.info("candidate_not_proposed", version=version, detail="another one is being evaluated")
    else:
        operator.set_candidate(version, Intent(ACTOR, report.candidate_reason, {"held_out": dict(report.held_out)}))


def _new_windows(settings: Settings, store: PolicyStore) -> int:
    try:
        return count_new_windows(settings.state_dir / TRANSITIONS, learner_watermark(store))
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
