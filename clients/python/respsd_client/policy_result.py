"""What the policy calls return, read from the wire messages; both clients use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from respsd_client.v1 import action_pb2, policy_pb2


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """One stored policy version."""

    version: int
    aliases: tuple[str, ...]
    state: str
    created: datetime
    """UTC."""
    kind: str
    parent: int | None
    tokens_per_second: float | None
    action: str | None
    """`TT,d,k` or `off` for a constant policy."""


@dataclass(frozen=True, slots=True)
class PolicyDetail:
    """Everything about one stored version."""

    policy: PolicyInfo
    manifest: Mapping[str, object] | None
    """Its manifest's JSON object; None where it cannot be read."""
    fault: str | None
    """What is wrong with its files; None where they verify."""


@dataclass(frozen=True, slots=True)
class PolicyFlag:
    """A pin or a freeze: who set it, when and why."""

    at: datetime
    """UTC."""
    actor: str
    reason: str
    version: int | None
    """The pinned champion; None for a freeze."""


@dataclass(frozen=True, slots=True)
class PolicyFlags:
    """The flags as they stand; None where one is not set."""

    pin: PolicyFlag | None
    freeze: PolicyFlag | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of the audit log."""

    id: int
    """Ascending; 0 of a dry run."""
    at: datetime
    """UTC."""
    actor: str
    event: str
    alias: str | None
    from_version: int | None
    to_version: int | None
    reason: str
    figures: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a call changed, or would change."""

    entries: tuple[HistoryEntry, ...]
    """None where everything was as asked for already."""
    dry_run: bool


def read_policies(response: policy_pb2.ListPoliciesResponse) -> list[PolicyInfo]:
    """The versions of ListPolicies."""
    return [_policy(policy) for policy in response.policies]


def read_flags(response: policy_pb2.ListPoliciesResponse) -> PolicyFlags:
    """The flags of ListPolicies."""
    return PolicyFlags(
        pin=_flag(response.pin) if response.HasField("pin") else None,
        freeze=_flag(response.freeze) if response.HasField("freeze") else None,
    )


def read_detail(response: policy_pb2.GetPolicyResponse) -> PolicyDetail:
    """The result of GetPolicy."""
    return PolicyDetail(
        policy=_policy(response.policy),
        manifest=json.loads(response.manifest) if response.manifest else None,
        fault=response.fault if response.HasField("fault") else None,
    )


def read_entries(entries: Iterable[policy_pb2.HistoryEntry]) -> tuple[HistoryEntry, ...]:
    """Entries of the audit log."""
    return tuple(
        HistoryEntry(
            id=entry.id,
            at=entry.at.ToDatetime(tzinfo=UTC),
            actor=entry.actor,
            event=entry.event,
            alias=entry.alias if entry.HasField("alias") else None,
            from_version=entry.from_version if entry.HasField("from_version") else None,
            to_version=entry.to_version if entry.HasField("to_version") else None,
            reason=entry.reason,
            figures=json.loads(entry.figures) if entry.HasField("figures") else None,
        )
        for entry in entries
    )


def read_change(change: policy_pb2.PolicyChange) -> PolicyChange:
    """What was changed."""
    return PolicyChange(read_entries(change.entries), change.dry_run)


def _policy(policy: policy_pb2.Policy) -> PolicyInfo:
    return PolicyInfo(
        version=policy.version,
        aliases=tuple(policy.aliases),
        state=policy.state,
        created=policy.created.ToDatetime(tzinfo=UTC),
        kind=policy.kind,
        parent=policy.parent if policy.HasField("parent") else None,
        tokens_per_second=policy.tokens_per_second if policy.HasField("tokens_per_second") else None,
        action=_action(policy.action) if policy.HasField("action") else None,
    )


def _flag(flag: policy_pb2.Flag) -> PolicyFlag:
    return PolicyFlag(
        at=flag.at.ToDatetime(tzinfo=UTC),
        actor=flag.actor,
        reason=flag.reason,
        version=flag.version if flag.HasField("version") else None,
    )


def _action(action: action_pb2.Action) -> str:
    if action.total_tokens == 1:
        return "off"
    return f"{action.total_tokens},{action.depth},{action.top_k}"
