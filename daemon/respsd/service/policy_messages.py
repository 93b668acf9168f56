"""PolicyService's wire messages, made of the catalog's and the operator's values and read into them."""

from __future__ import annotations

import json
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from policy_store import AuditEntry, Flag
from respsd.control.catalog import PolicyDetail, PolicySummary
from respsd.control.policy_change import OPERATOR, Intent, PolicyChange
from respsd.errors import InvalidRequest
from respsd.service.auth import ANYONE, current_caller
from respsd.service.messages import action_message
from respsd_client.v1 import policy_pb2

MOST_REASON = 500
MOST_ACTOR = 64
"""Characters."""


def read_intent(intent: policy_pb2.Intent) -> Intent:
    """Who asks and why; a caller whom the daemon knows cannot go by another name."""
    _check_text("intent.reason", intent.reason, MOST_REASON)
    _check_text("intent.actor", intent.actor, MOST_ACTOR)
    caller = current_caller().name
    name = intent.actor or caller if caller == ANYONE.name else caller
    return Intent(actor=OPERATOR + name, reason=intent.reason, dry_run=intent.dry_run)


def policy_message(summary: PolicySummary) -> policy_pb2.Policy:
    """One version."""
    message = policy_pb2.Policy(
        version=summary.version,
        aliases=summary.aliases,
        state=summary.state,
        kind=summary.kind,
        parent=summary.parent,
        tokens_per_second=summary.tokens_per_second,
        action=action_message(summary.action) if summary.action is not None else None,
    )
    message.created.FromDatetime(summary.created)
    return message


def detail_message(detail: PolicyDetail) -> policy_pb2.GetPolicyResponse:
    """Everything about one version."""
    return policy_pb2.GetPolicyResponse(
        policy=policy_message(detail.summary),
        manifest="" if detail.manifest is None else json.dumps(detail.manifest),
        fault=detail.fault,
    )


def flag_message(flag: Flag | None) -> policy_pb2.Flag | None:
    """A flag, if it is set."""
    if flag is None:
        return None
    return policy_pb2.Flag(at=_timestamp(flag.at), actor=flag.actor, reason=flag.reason, version=flag.version)


def entry_message(entry: AuditEntry) -> policy_pb2.HistoryEntry:
    """One entry of the audit log."""
    return policy_pb2.HistoryEntry(
        id=entry.id,
        at=_timestamp(entry.at),
        actor=entry.actor,
        event=entry.event,
        alias=entry.alias,
        from_version=entry.from_version,
        to_version=entry.to_version,
        reason=entry.reason,
        figures=None if entry.figures is None else json.dumps(entry.figures),
    )


def change_message(change: PolicyChange) -> policy_pb2.PolicyChange:
    """What was changed."""
    return policy_pb2.PolicyChange(entries=map(entry_message, change.entries), dry_run=change.dry_run)


def _timestamp(text: str) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(datetime.fromisoformat(text))
    return message


def _check_text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidRequest(field, f"{text[:20]}...", f"it has {len(text)} characters; at most {most}")
    if not all(character.isprintable() for character in text):
        raise InvalidRequest(field, text[:40], "it must be one line of printable characters")
