"""`respsd policy explain`: why a version serves, or does not, in words and numbers."""

from __future__ import annotations

import sys

from policy_store import HistoryQuery
from respsd.cli.output import DocumentFormat, print_json, print_yaml
from respsd.cli.policy.options import AskOption, ChangeFormatOption, StateDirOption, VersionArgument
from respsd.cli.policy.reading import source
from respsd.cli.policy.wording import entry_document, policy_document
from respsd.rollout.story import tell


def explain(
    version: VersionArgument,
    *,
    folder: StateDirOption = None,
    address: AskOption = None,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Tell a version's story: where it came from, how it was measured, who or what moved it and on which evidence."""
    with source(folder, address) as policies:
        policy = policies.get_policy(version).summary
        entries = policies.history(HistoryQuery(), policy.version)
    story = tell(policy.version, entries)
    document = {
        "policy": policy_document(policy),
        "story": story,
        "entries": [entry_document(each) for each in entries],
    }
    match output:
        case DocumentFormat.JSON:
            print_json(document)
        case DocumentFormat.YAML:
            print_yaml(document)
        case _:
            aliases = f", {', '.join(policy.aliases)}" if policy.aliases else ""
            sys.stdout.write(f"Version {policy.version} ({policy.kind}, {policy.state}{aliases})\n")
            sys.stdout.write("".join(f"- {sentence}\n" for sentence in story))
