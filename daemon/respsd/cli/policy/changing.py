"""The commands that change which policies serve; each says what it changed, with the audit log's numbers."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from respsd.cli.output import DocumentFormat, print_json, print_message, print_yaml
from respsd.cli.policy.operating import intent_of, operator
from respsd.cli.policy.options import (
    AddressOption,
    ChangeFormatOption,
    DryRunOption,
    OfflineOption,
    ReasonOption,
    StateDirOption,
    VersionArgument,
)
from respsd.cli.policy.wording import change as wording
from respsd.cli.policy.wording import entry_document
from respsd.control.policy_change import PolicyChange


def promote(
    version: VersionArgument,
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Make a version the champion, which serves requests that name no policy; the champion before it is last-good."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.promote(version, intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def rollback(
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="V", help="A former champion.", show_default="the newest good one; the baseline at last"),
    ] = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Bring a former champion back and quarantine the present one: it does not serve again."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.rollback(intent_of(reason, dry_run=dry_run), to)
    print_change(change, output)


def nominate(
    version: VersionArgument,
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Make a version the candidate: the rollout compares it with the champion on live traffic and promotes it, or not.

    It takes the place of a candidate that is under evaluation. `respsd status` shows how the comparison stands.
    """
    with operator(address, folder, offline=offline) as policies:
        change = policies.nominate(version, intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def withdraw(
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Let there be no candidate: its evaluation ends without a verdict, and it may be nominated again."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.withdraw(intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def pin(
    version: VersionArgument,
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Make a version the champion where it is not, and let nobody move it, by machine or by hand, until `unpin`."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.pin(version, intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def unpin(
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Let the champion be moved again."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.unpin(intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def freeze(
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Stop learning: no new learner, no new candidate, no training. Requests are served as before."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.freeze(intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def unfreeze(
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Let learning go on."""
    with operator(address, folder, offline=offline) as policies:
        change = policies.unfreeze(intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def rm(
    version: VersionArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Delete a version for good; refused while an alias points to it. Its number is not used again."""
    if not yes and not dry_run:
        if not sys.stdin.isatty():
            raise typer.BadParameter("deleting cannot be undone; without a terminal to ask at, give --yes")
        typer.confirm(f"Delete policy version {version} for good?", abort=True, err=True)
    with operator(address, folder, offline=offline) as policies:
        change = policies.remove(version, intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def train_now(
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Have the daemon start an update of the learner now, without waiting for its time."""
    with operator(address, folder, offline=False) as policies:
        started = policies.train_now(intent_of(reason, dry_run=dry_run))
    match output:
        case DocumentFormat.JSON:
            print_json({"started": started, "dry_run": dry_run})
        case DocumentFormat.YAML:
            print_yaml({"started": started, "dry_run": dry_run})
        case DocumentFormat.TABLE:
            sys.stdout.write(f"{started}\n")


def print_change(change: PolicyChange, output: DocumentFormat) -> None:
    """What a change did, or would do."""
    document = {
        "changed": change.changed,
        "dry_run": change.dry_run,
        "changes": [entry_document(entry) for entry in change.entries],
    }
    match output:
        case DocumentFormat.JSON:
            print_json(document)
        case DocumentFormat.YAML:
            print_yaml(document)
        case DocumentFormat.TABLE:
            for entry in change.entries:
                sys.stdout.write(f"{wording(entry)}{'' if change.dry_run else f'  (audit {entry.id})'}\n")
            if not change.changed:
                print_message("unchanged: everything is so already")
            elif change.dry_run:
                print_message("dry run: nothing was changed")
