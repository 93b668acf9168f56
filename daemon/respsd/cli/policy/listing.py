"""`respsd policy list`: every version on a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from respsd.cli.output import DataFormat, print_json, print_message, print_table, print_yaml
from respsd.cli.policy.options import AskOption, FormatOption, StateDirOption
from respsd.cli.policy.reading import rfc3339, source
from respsd.cli.policy.wording import age, flag_lines, policy_document, speed, state_text
from respsd.control.catalog import PolicySummary


def list_policies(
    *, folder: StateDirOption = None, address: AskOption = None, output: FormatOption = DataFormat.TABLE
) -> None:
    """List every policy version, oldest first, with its aliases and measured tokens per second."""
    with source(folder, address) as policies:
        versions = policies.list_policies()
        flags = policies.flags()
    match output:
        case DataFormat.JSON:
            print_json([policy_document(version) for version in versions])
        case DataFormat.YAML:
            print_yaml([policy_document(version) for version in versions])
        case DataFormat.NAME:
            sys.stdout.write("".join(f"{version.version}\n" for version in versions))
        case _:
            _print_table(versions, wide=output is DataFormat.WIDE)
            for line in flag_lines(flags):
                print_message(line)


def _print_table(versions: Sequence[PolicySummary], *, wide: bool) -> None:
    now = datetime.now(UTC)
    rows = [
        (
            version.version,
            ",".join(version.aliases),
            state_text(version.state),
            version.kind,
            version.action,
            speed(version.tokens_per_second),
            *((version.parent, rfc3339(version.created)) if wide else (age(now, version.created),)),
        )
        for version in versions
    ]
    headers = ("version", "aliases", "state", "kind", "action", "tokens/s")
    print_table((*headers, *(("parent", "created") if wide else ("age",))), rows)
