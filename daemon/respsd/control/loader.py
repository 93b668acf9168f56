"""Makes controllers of stored versions, with every check that a version has to pass before it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from policy_store import PolicyStore, StoredPolicy, StoreError, VersionCorrupt, VersionUnknown
from respsd.control.action import Action
from respsd.control.controller import Controller
from respsd.control.observation import ObservationSchema
from respsd.control.reserve import excess
from respsd.control.resps import RespsController
from respsd.control.router import LEARNER
from respsd.control.static import StaticController
from respsd.errors import PolicyRefused, UnknownPolicy

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyLoader:
    """Makes controllers of stored versions."""

    store: PolicyStore
    schema: ObservationSchema
    reserved: Action
    """The largest action that the engine can run."""
    temperatures: Mapping[str, float]
    """By arm: sample at this temperature; an arm that is not here takes the most probable action."""

    def controller(self, version: int, arm: str) -> Controller:
        """The controller of a version; raises UnknownPolicy or PolicyRefused.

        A quarantined version does not serve, but as the learner it may still be what learning goes on from.
        """
        try:
            state = next((each.state for each in self.store.list() if each.version == version), None)
            if state is None:
                raise UnknownPolicy(str(version))
            if state == "quarantined" and arm != LEARNER:
                raise PolicyRefused(version, "it is quarantined")
            policy = self.store.load(version)
        except VersionUnknown as fault:
            raise UnknownPolicy(str(version)) from fault
        except VersionCorrupt as fault:
            raise PolicyRefused(version, fault.fault) from fault
        except StoreError as fault:  # its text names the store's path, which is no business of a caller's
            log.error("policy_unreadable", version=version, fault=str(fault))
            raise PolicyRefused(version, "the policy store cannot be read") from fault
        return self.admit(policy, arm)

    def admit(self, policy: StoredPolicy, arm: str) -> Controller:
        """The controller of a version that need not be stored yet; raises PolicyRefused."""
        manifest = policy.manifest
        if manifest.action is None:
            temperature = self.temperatures.get(arm)
            return RespsController(policy, arm, self.schema, self.reserved, temperature=temperature)
        action = Action(*manifest.action)
        over = excess(action, self.reserved)
        if over is not None:
            raise PolicyRefused(
                manifest.version, f"action {action}: the engine's limit for {over.knob} is {over.limit}"
            )
        return StaticController(action, manifest.version, arm)
