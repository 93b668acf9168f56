"""Where commands that only read get their data: the files, or a running daemon; both answer in the same types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from policy_store import AuditEntry, Flag, Flags, HistoryQuery, PolicyStore, StoreError, StoreNotFound
from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import print_message
from respsd.control.action import Action
from respsd.control.catalog import PolicyCatalog, PolicyDetail, PolicySummary
from respsd.errors import StorageError
from respsd.paths import POLICIES, TRANSITIONS, state_dir

if TYPE_CHECKING:  # grpc is slow to import, and the files need none of it
    import respsd_client


class Source(Protocol):
    """What can be asked about policies; see `PolicyCatalog`."""

    def list_policies(self) -> list[PolicySummary] | tuple[PolicySummary, ...]: ...

    def get_policy(self, name: int | str) -> PolicyDetail: ...

    def history(self, query: HistoryQuery, name: int | str | None = None) -> tuple[AuditEntry, ...]: ...

    def flags(self) -> Flags: ...


@contextmanager
def source(folder: Path | None, address: str | None) -> Iterator[Source | PolicyCatalog]:
    """The files of a state folder, or the daemon at an address."""
    if address is None:
        with _files(folder or state_dir()) as catalog:
            yield catalog
        return
    if folder is not None:
        raise typer.BadParameter("give --state-dir or --address, not both")
    from respsd_client import Client

    with service_faults(address), Client(address) as client:
        yield RemoteCatalog(client)


@contextmanager
def service_faults(address: str) -> Iterator[None]:
    """End the command where a call fails: one line, and the exit code of the call's status.

    An address or credentials that cannot be are a usage error.
    """
    from respsd_client import ServiceError

    try:
        yield
    except ServiceError as fault:
        message = " ".join(fault.message.split())
        is_gone = fault.code.name == "UNAVAILABLE"
        print_message(f"no daemon serves at {address}: {message}" if is_gone else f"{address}: {message}")
        raise typer.Exit(of_status(fault.code.name)) from fault
    except ValueError as fault:
        print_message(f"respsd: {fault}")
        raise typer.Exit(ExitCode.USAGE) from fault


class RemoteCatalog:
    """A daemon's policies."""

    def __init__(self, client: respsd_client.Client) -> None:
        self._client = client

    def list_policies(self) -> list[PolicySummary]:
        """Every version, oldest first."""
        return [_summary(each) for each in self._client.list_policies()]

    def get_policy(self, name: int | str) -> PolicyDetail:
        """One version."""
        found = self._client.get_policy(name)
        return PolicyDetail(_summary(found.policy), found.manifest, found.fault)

    def history(self, query: HistoryQuery, name: int | str | None = None) -> tuple[AuditEntry, ...]:
        """What was changed, oldest first."""
        return tuple(map(entry, self._client.policy_history(name, alias=query.alias, limit=query.limit)))

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        flags = self._client.policy_flags()
        return Flags(_flag(flags.pin), _flag(flags.freeze))


def entry(found: respsd_client.HistoryEntry) -> AuditEntry:
    """An entry of the audit log as the store has it."""
    return AuditEntry(
        id=found.id,
        at=rfc3339(found.at),
        actor=found.actor,
        event=found.event,  # type: ignore[arg-type]  # a newer daemon may have other words
        alias=found.alias,
        from_version=found.from_version,
        to_version=found.to_version,
        reason=found.reason,
        figures=None if found.figures is None else dict(found.figures),
    )


def rfc3339(moment: datetime) -> str:
    """A moment for machines, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def _files(folder: Path) -> Iterator[PolicyCatalog]:
    try:
        with PolicyStore(folder / POLICIES, read_only=True) as store:
            yield PolicyCatalog(store, folder / TRANSITIONS, print_message)
    except StoreNotFound as fault:
        print_message(f"{fault}; `respsd serve` makes it, --state-dir says where to look")
        raise typer.Exit(ExitCode.NOT_FOUND) from fault
    except StoreError as fault:
        raise StorageError(str(fault)) from fault


def _summary(found: respsd_client.PolicyInfo) -> PolicySummary:
    return PolicySummary(
        version=found.version,
        aliases=found.aliases,
        state=found.state,
        created=found.created,
        kind=found.kind,
        parent=found.parent,
        tokens_per_second=found.tokens_per_second,
        action=None if found.action is None else Action.parse(found.action),
    )


def _flag(found: respsd_client.PolicyFlag | None) -> Flag | None:
    return None if found is None else Flag(rfc3339(found.at), found.actor, found.reason, found.version)
