"""What a rollout needs of whoever moves aliases: the part of `control.operator.PolicyOperator` that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from policy_store import Flags
from respsd.control.controller import Controller
from respsd.control.policy_change import Intent, PolicyChange


class PolicyMoves(Protocol):
    """Moves aliases, each move one transaction with an entry in the audit log.

    Every method raises UnknownPolicy, PolicyRefused, ChangeRefused, StorageError or, where an alias no longer serves
    what the intent expects, Overtaken; and then nothing has changed.
    """

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version the champion."""
        ...

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        """Take the champion back and quarantine it; `to` a former champion, or the newest good one."""
        ...

    def withdraw(self, intent: Intent) -> PolicyChange:
        """Let there be no candidate."""
        ...

    def quarantine(self, version: int | str, intent: Intent) -> PolicyChange:
        """Say that a version never serves again; a candidate ceases to be one."""
        ...

    def freeze(self, intent: Intent) -> PolicyChange:
        """Stop learning."""
        ...

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        ...

    def rolled_back_by_hand(self, version: int) -> bool:
        """Whether a person took this version back from being champion."""
        ...

    def automatic_rollbacks(self, within_seconds: float) -> int:
        """Versions that machines have quarantined in the time up to now."""
        ...


class ServingAliases(Protocol):
    """The part of `control.router.PolicyRouter` that a rollout uses."""

    @property
    def default(self) -> str:
        """The version or alias for requests that name none."""
        ...

    def serving(self) -> Mapping[str, int | None]:
        """The version that each alias has now."""
        ...

    def controller(self, alias: str) -> Controller:
        """The controller that serves an alias now."""
        ...
