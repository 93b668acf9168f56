"""`respsd policy diff`: what is different between two versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from respsd.cli.output import DocumentFormat, print_json, print_table, print_yaml
from respsd.cli.policy.options import AskOption, ChangeFormatOption, StateDirOption
from respsd.cli.policy.reading import source
from respsd.cli.policy.show import actions, facts
from respsd.cli.policy.wording import policy_document, speed
from respsd.control.catalog import PolicyDetail


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="Version number or alias.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="Version number or alias.", show_default=False)],
    *,
    folder: StateDirOption = None,
    address: AskOption = None,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Show what differs between two versions; prints nothing but the heading where nothing does."""
    with source(folder, address) as policies:
        one, other = policies.get_policy(a), policies.get_policy(b)
    if output is not DocumentFormat.TABLE:
        document = {
            "a": one.summary.version,
            "b": other.summary.version,
            "differences": {name: {"a": left, "b": right} for name, left, right in _differences(one, other)},
            "tokens_per_second_ratio": _ratio(one, other),
        }
        print_json(document) if output is DocumentFormat.JSON else print_yaml(document)
        return
    rows = list(_lines(one, other))
    if (ratio := _ratio(one, other)) is not None:
        rows.append(("speed", None, f"{ratio:.3f} of A's"))
    print_table(("differs", f"A: {one.summary.version}", f"B: {other.summary.version}"), rows)


def _differences(one: PolicyDetail, other: PolicyDetail) -> Iterator[tuple[str, object, object]]:
    """Every field of listing and manifest that is not the same."""
    left = {**(one.manifest or {}), **policy_document(one.summary), "fault": one.fault}
    right = {**(other.manifest or {}), **policy_document(other.summary), "fault": other.fault}
    for name in sorted(left.keys() | right.keys()):
        if name != "version" and left.get(name) != right.get(name):
            yield name, left.get(name), right.get(name)


def _lines(one: PolicyDetail, other: PolicyDetail) -> Iterator[tuple[str, object, object]]:
    left, right = _person(one), _person(other)
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name) and (left.get(name), right.get(name)) != (None, None):
            yield name, left.get(name), right.get(name)
    if one.manifest is not None and other.manifest is not None and None not in (left["actions"], right["actions"]):
        a, b = set(actions(one.manifest)), set(actions(other.manifest))
        if a != b:
            yield "table", f"{len(a - b)} of its own", f"{len(b - a)} of its own, {len(a & b)} common"


def _person(detail: PolicyDetail) -> Mapping[str, object]:
    summary = detail.summary
    return {
        "aliases": ", ".join(summary.aliases) or None,
        "state": summary.state,
        "kind": summary.kind,
        "created": summary.created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "parent": summary.parent,
        "tokens/s": speed(summary.tokens_per_second),
        "action": summary.action,
        "actions": None,
        **dict(facts(detail.manifest or {"kind": "static"})),
        "files": detail.fault or "verified",
    }


def _ratio(one: PolicyDetail, other: PolicyDetail) -> float | None:
    """Measured speed of B over that of A; None where one was never measured."""
    a, b = one.summary.tokens_per_second, other.summary.tokens_per_second
    return b / a if a and b else None
