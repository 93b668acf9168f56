"""Puts a daemon's rollout together from its settings."""

from __future__ import annotations

from random import SystemRandom

from policy_store import PolicyStore
from respsd import __version__
from respsd.clock import Clock
from respsd.control.operator import PolicyOperator
from respsd.control.router import PolicyRouter
from respsd.experience.database import open_log
from respsd.paths import TRANSITIONS
from respsd.rollout.decisions import ACTOR
from respsd.rollout.evidence import Evidence, EvidenceLog, NoEvidence
from respsd.rollout.off_version import off_version
from respsd.rollout.rollout import Rollout
from respsd.settings import Settings


def daemon_rollout(
    settings: Settings,
    store: PolicyStore,
    operator: PolicyOperator,
    router: PolicyRouter,
    engine_config_hash: str,
    clock: Clock,
) -> Rollout:
    """The rollout of a daemon's candidates, told of the router's faults; not started.

    :param engine_config_hash: of all that a step's time depends on; evidence of others is not gone on with
    """
    rollout = Rollout(
        router,
        operator,
        settings.rollout,
        _evidence(settings, engine_config_hash),
        persistence=settings.control.persistence,
        off_version=lambda: off_version(store, actor=ACTOR, code_version=__version__),
        rng=SystemRandom(),
        clock=clock,
    )
    router.on_fault = rollout.on_fault
    return rollout


def _evidence(settings: Settings, engine_config_hash: str) -> Evidence:
    """Kept with the experience log, where one is kept."""
    if not settings.recorder.enabled:
        return NoEvidence()
    path = settings.state_dir / TRANSITIONS
    return EvidenceLog(lambda: open_log(path), engine_config_hash)
