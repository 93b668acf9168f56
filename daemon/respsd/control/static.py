"""The controller that always chooses one action: the baseline, and a request's own fixed action."""

from __future__ import annotations

from respsd.control.action import Action, ActionTable
from respsd.control.controller import Decision, Vector


class StaticController:
    """Chooses `action` whatever it sees."""

    def __init__(self, action: Action, version: int | None, arm: str) -> None:
        self._version = version
        # A stored static version's table is its one action; a request's own action comes from no table.
        table = None if version is None else ActionTable((action,))
        self._decision = Decision(
            action=action,
            log_prob=0.0,
            arm=arm,
            policy_version=version,
            action_index=None if table is None else 0,
            table_fingerprint=None if table is None else table.fingerprint,
        )

    @property
    def version(self) -> int | None:
        """The policy version; None for a request's own action."""
        return self._version

    @property
    def arm(self) -> str:
        """What its windows carry as their arm."""
        return self._decision.arm

    @property
    def action(self) -> Action:
        """The one action."""
        return self._decision.action

    def choose(self, observation: Vector, uniform: float) -> Decision:  # noqa: ARG002 - the Protocol's signature
        """The one decision."""
        return self._decision
