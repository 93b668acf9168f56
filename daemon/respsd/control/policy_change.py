"""What a change of policies is asked for with, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from policy_store import AuditEntry

OPERATOR = "operator:"
"""How the actor of a change that a person made begins; the person's name follows."""


class TrainNow(Protocol):
    """Starts an update of the learner at once."""

    def __call__(self, *, actor: str, reason: str, dry_run: bool) -> str:
        """Start it and say in a sentence what was started; raises ChangeRefused where it cannot be now."""
        ...


@dataclass(frozen=True, slots=True)
class Intent:
    """Who makes a change and why, as the audit log keeps it."""

    actor: str
    """`operator:NAME` for a person; a machine's own word otherwise: rollout, update, ..."""
    reason: str = ""
    evidence: Mapping[str, object] | None = None
    """Figures that the change rests on; JSON types."""
    dry_run: bool = False
    """Check everything and say what would change, and change nothing."""
    expected: Mapping[str, int | None] = field(default_factory=dict)
    """The versions that aliases must serve still, because the change was decided for these; otherwise Overtaken."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a change did, or would do."""

    entries: tuple[AuditEntry, ...]
    """As the audit log has them, in order; none where everything was as asked for already. Of a dry run, id 0."""
    dry_run: bool = False

    @property
    def changed(self) -> bool:
        """Whether there was, or would be, anything to change."""
        return bool(self.entries)


class Operator(Protocol):
    """Changes the policies, in this process or in a daemon; `respsd.control.operator` says what each call does."""

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version, by number or alias, the champion."""
        ...

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        """Take the champion back and quarantine it."""
        ...

    def nominate(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version, by number or alias, the candidate."""
        ...

    def withdraw(self, intent: Intent) -> PolicyChange:
        """Let there be no candidate."""
        ...

    def pin(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version the champion, and let nobody move the champion until it is unpinned."""
        ...

    def unpin(self, intent: Intent) -> PolicyChange:
        """Let the champion be moved again."""
        ...

    def freeze(self, intent: Intent) -> PolicyChange:
        """Stop learning."""
        ...

    def unfreeze(self, intent: Intent) -> PolicyChange:
        """Let learning go on."""
        ...

    def remove(self, version: int | str, intent: Intent) -> PolicyChange:
        """Delete a version that no alias points to."""
        ...

    def export(self, version: int | str) -> bytes:
        """A version as an archive."""
        ...

    def import_archive(self, data: bytes, intent: Intent) -> PolicyChange:
        """Store an archive's version under a new number."""
        ...

    def train_now(self, intent: Intent) -> str:
        """Start an update of the learner; says what was started."""
        ...
