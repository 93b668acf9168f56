"""A running daemon's operator, with the same methods as one in this process."""

from __future__ import annotations

import respsd_client
from respsd.cli.policy.reading import entry
from respsd.control.policy_change import OPERATOR, Intent, PolicyChange


class RemoteOperator:
    """A daemon's operator."""

    def __init__(self, client: respsd_client.Client) -> None:
        self._client = client

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        """See `PolicyOperator`, as for all methods."""
        return _change(self._client.promote_policy(version, **_options(intent)))

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        """Take the champion back."""
        return _change(self._client.rollback_policy(to, **_options(intent)))

    def nominate(self, version: int | str, intent: Intent) -> PolicyChange:
        """Make a version the candidate."""
        return _change(self._client.nominate_policy(version, **_options(intent)))

    def withdraw(self, intent: Intent) -> PolicyChange:
        """Let there be no candidate."""
        return _change(self._client.withdraw_candidate(**_options(intent)))

    def pin(self, version: int | str, intent: Intent) -> PolicyChange:
        """Pin the champion."""
        return _change(self._client.pin_policy(version, **_options(intent)))

    def unpin(self, intent: Intent) -> PolicyChange:
        """Take the pin back."""
        return _change(self._client.unpin_policy(**_options(intent)))

    def freeze(self, intent: Intent) -> PolicyChange:
        """Stop learning."""
        return _change(self._client.freeze_learning(**_options(intent)))

    def unfreeze(self, intent: Intent) -> PolicyChange:
        """Let learning go on."""
        return _change(self._client.unfreeze_learning(**_options(intent)))

    def remove(self, version: int | str, intent: Intent) -> PolicyChange:
        """Delete a version."""
        return _change(self._client.delete_policy(version, **_options(intent)))

    def export(self, version: int | str) -> bytes:
        """A version as an archive."""
        return self._client.export_policy(version)

    def import_archive(self, data: bytes, intent: Intent) -> PolicyChange:
        """Store an archive's version."""
        return _change(self._client.import_policy(data, **_options(intent)))

    def train_now(self, intent: Intent) -> str:
        """Start an update."""
        return self._client.train_now(**_options(intent))


def _options(intent: Intent) -> respsd_client.ChangeOptions:
    return {"reason": intent.reason, "actor": intent.actor.removeprefix(OPERATOR), "dry_run": intent.dry_run}


def _change(found: respsd_client.PolicyChange) -> PolicyChange:
    return PolicyChange(tuple(map(entry, found.entries)), found.dry_run)
