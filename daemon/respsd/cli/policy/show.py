"""`respsd policy show`: everything about one version."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

from rich.text import Text

from policy_store import AuditEntry, HistoryQuery
from respsd.cli.output import DataFormat, print_json, print_table, print_yaml
from respsd.cli.policy.history import print_entries
from respsd.cli.policy.options import AskOption, FormatOption, StateDirOption, VersionArgument
from respsd.cli.policy.reading import rfc3339, source
from respsd.cli.policy.wording import age, entry_document, policy_document, speed, state_text
from respsd.control.action import OFF, Action
from respsd.control.catalog import PolicyDetail

Manifest = Mapping[str, object]


def show(
    version: VersionArgument,
    *,
    folder: StateDirOption = None,
    address: AskOption = None,
    output: FormatOption = DataFormat.TABLE,
) -> None:
    """Show one version: where it comes from, what it chooses from, whether its files verify, what happened to it."""
    with source(folder, address) as policies:
        detail = policies.get_policy(version)
        entries = policies.history(HistoryQuery(limit=100), detail.summary.version)
    match output:
        case DataFormat.JSON:
            print_json(_document(detail, entries))
        case DataFormat.YAML:
            print_yaml(_document(detail, entries))
        case DataFormat.NAME:
            sys.stdout.write(f"{detail.summary.version}\n")
        case _:
            _print_person(detail, entries, wide=output is DataFormat.WIDE)


def _document(detail: PolicyDetail, entries: Sequence[AuditEntry]) -> dict[str, object]:
    return {
        **policy_document(detail.summary),
        "fault": detail.fault,
        "manifest": None if detail.manifest is None else dict(detail.manifest),
        "history": [entry_document(entry) for entry in entries],
    }


def _print_person(detail: PolicyDetail, entries: Sequence[AuditEntry], *, wide: bool) -> None:
    summary = detail.summary
    created = f"{rfc3339(summary.created)} ({age(datetime.now(UTC), summary.created)} ago)"
    rows: list[tuple[str, object]] = [
        ("aliases", ", ".join(summary.aliases) or None),
        ("state", state_text(summary.state)),
        ("kind", summary.kind),
        ("created", created),
        ("parent", summary.parent),
        ("tokens/s", speed(summary.tokens_per_second)),
        ("action", summary.action),
        *([] if detail.manifest is None else facts(detail.manifest)),
        ("files", "verified" if detail.fault is None else Text(detail.fault, style="red")),
    ]
    print_table(("version", str(summary.version)), [row for row in rows if row[1] is not None])
    sys.stdout.write("\n")
    print_entries(entries, wide=wide)


def facts(manifest: Manifest) -> list[tuple[str, object]]:
    """What the manifest says, a line each; None where there is nothing to say."""
    return [
        ("actions", _table(manifest)),
        ("network", _network(manifest)),
        ("observation", _schema(manifest)),
        ("normaliser", None if manifest.get("normaliser") is None else "frozen mean and standard deviation"),
        ("trained on", _pairs(manifest.get("training_window"))),
        ("origin", _origin(manifest.get("origin"))),
        ("code", manifest.get("code_version") or None),
        ("note", manifest.get("note") or None),
        ("weights", _short(manifest.get("weights_sha256"))),
    ]


def actions(manifest: Manifest) -> list[Action]:
    """The manifest's action table."""
    return [Action(*triple) for triple in cast("list[list[int]]", manifest["action_table"])]


def _table(manifest: Manifest) -> str | None:
    if manifest.get("kind") == "static":
        return None
    table = actions(manifest)
    trees = [action for action in table if action != OFF] or table
    largest = Action(*(max(getattr(each, knob) for each in trees) for knob in ("total_tokens", "depth", "top_k")))
    return f"{len(table)}, {'off and ' if OFF in table else ''}trees of up to {largest}"


def _network(manifest: Manifest) -> str | None:
    architecture = cast("dict[str, object] | None", manifest.get("architecture"))
    schema = cast("dict[str, object] | None", manifest.get("observation_schema"))
    if architecture is None or schema is None:
        return None
    sizes = [schema["width"], *cast("list[int]", architecture["hidden_sizes"]), len(actions(manifest))]
    return f"{' > '.join(map(str, sizes))}, {architecture['activation']}"


def _schema(manifest: Manifest) -> str | None:
    schema = cast("dict[str, object] | None", manifest.get("observation_schema"))
    return None if schema is None else f"{schema.get('name')} {schema.get('version')}, {schema.get('fingerprint')}"


def _origin(origin: object) -> str | None:
    if not isinstance(origin, dict):
        return None
    return f"version {origin.get('version')} of another store, made {origin.get('created')}"


def _pairs(value: object) -> str | None:
    if not isinstance(value, dict):
        return None
    return (
        ", ".join(f"{key} {each}" for key, each in value.items() if isinstance(each, int | float | str))
        or "see -o json"
    )


def _short(digest: object) -> str | None:
    return f"sha256 {digest[:12]}" if isinstance(digest, str) else None
