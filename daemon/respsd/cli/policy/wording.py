"""How versions, changes and times are put for people, and for scripts."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.text import Text

from policy_store import AuditEntry, Flags
from respsd.cli.policy.reading import rfc3339
from respsd.control.catalog import PolicySummary


def policy_document(version: PolicySummary) -> dict[str, object]:
    """A version for scripts."""
    return {
        "version": version.version,
        "aliases": list(version.aliases),
        "state": version.state,
        "created": rfc3339(version.created),
        "kind": version.kind,
        "parent": version.parent,
        "tokens_per_second": version.tokens_per_second,
        "action": None if version.action is None else str(version.action),
    }


def entry_document(entry: AuditEntry) -> dict[str, object]:
    """An entry of the audit log for scripts; `id` is null in a dry run."""
    return {
        "id": entry.id or None,
        "at": entry.at,
        "actor": entry.actor,
        "event": entry.event,
        "alias": entry.alias,
        "from": entry.from_version,
        "to": entry.to_version,
        "reason": entry.reason,
        "figures": entry.figures,
    }


def change(entry: AuditEntry) -> str:
    """What an entry says was done: `promote: champion 1 -> 5`, `quarantine: 7`."""
    if entry.alias is not None:
        to = "none" if entry.to_version is None else entry.to_version
        what = f"{entry.alias} {'none' if entry.from_version is None else entry.from_version} -> {to}"
        return what if entry.event == "alias" else f"{entry.event}: {what}"
    version = entry.from_version if entry.to_version is None else entry.to_version
    if version is None and entry.event == "import":
        return "import: a new version"  # a dry run gives no number
    return entry.event if version is None else f"{entry.event}: {version}"


def flag_lines(flags: Flags) -> list[str]:
    """What a person should know before wondering why nothing moves."""
    lines = []
    if flags.pin is not None:
        lines.append(
            f"version {flags.pin.version} is pinned as the champion by {flags.pin.actor}{_why(flags.pin.reason)}"
        )
    if flags.freeze is not None:
        lines.append(f"learning is frozen by {flags.freeze.actor}{_why(flags.freeze.reason)}")
    return lines


def state_text(state: str) -> Text:
    """A version's state, coloured where it is not good."""
    return Text(state, style="" if state == "good" else "red")


def speed(tokens_per_second: float | None) -> str | None:
    """Tokens per second; None where they were never measured."""
    return None if tokens_per_second is None else f"{tokens_per_second:.1f}"


def age(now: datetime, then: datetime) -> str:
    """The time since then, in its largest unit."""
    seconds = max(int((now - then).total_seconds()), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def age_of(entry: AuditEntry) -> str:
    """The time since an entry of the audit log."""
    return age(datetime.now(UTC), datetime.fromisoformat(entry.at))


def _why(reason: str) -> str:
    return f": {reason}" if reason else ""
