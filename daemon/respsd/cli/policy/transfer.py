"""`respsd policy export` and `import`: a version as a file, from one store to another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from policy_store import MAX_ARCHIVE_BYTES, PolicyStore, StoreError
from respsd.cli.output import DocumentFormat, print_message
from respsd.cli.policy.changing import print_change
from respsd.cli.policy.operating import intent_of, operator
from respsd.cli.policy.options import (
    AddressOption,
    AskOption,
    ChangeFormatOption,
    DryRunOption,
    OfflineOption,
    ReasonOption,
    StateDirOption,
    VersionArgument,
)
from respsd.cli.policy.reading import service_faults
from respsd.control.operator import named
from respsd.errors import ArchiveInvalid, StorageError
from respsd.paths import POLICIES, state_dir


def export(
    version: VersionArgument,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="- writes to standard output.", show_default="policy-V.tar"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    folder: StateDirOption = None,
    address: AskOption = None,
) -> None:
    """Write a version to a file, a tar of its manifest and weights that `respsd policy import` takes elsewhere."""
    data = _from_files(folder or state_dir(), version) if address is None else _from_daemon(folder, address, version)
    if to is not None and str(to) == "-":
        sys.stdout.buffer.write(data)
        return
    path = to or Path(f"policy-{version}.tar")
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(data)
    except FileExistsError as fault:
        raise typer.BadParameter(f"{path} exists; --force overwrites it") from fault
    except OSError as fault:
        raise StorageError(f"{path}: {fault.strerror}") from fault
    print_message(f"wrote {path}, {len(data)} bytes")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As export wrote it; - reads standard input.")],
    *,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    address: AddressOption = None,
    folder: StateDirOption = None,
    offline: OfflineOption = False,
    output: ChangeFormatOption = DocumentFormat.TABLE,
) -> None:
    """Store an exported version under a new number. It serves nothing until it is promoted."""
    data = _read(file)
    with operator(address, folder, offline=offline) as policies:
        change = policies.import_archive(data, intent_of(reason, dry_run=dry_run))
    print_change(change, output)


def _from_files(folder: Path, version: str) -> bytes:
    try:
        with PolicyStore(folder / POLICIES, read_only=True) as store:
            return store.export(version)
    except StoreError as fault:
        raise named(fault) from fault


def _from_daemon(folder: Path | None, address: str, version: str) -> bytes:
    if folder is not None:
        raise typer.BadParameter("give --state-dir or --address, not both")
    from respsd_client import Client

    with service_faults(address), Client(address) as client:
        return client.export_policy(version)


def _read(file: Path) -> bytes:
    """The file's bytes, if it is not larger than any archive."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_ARCHIVE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_ARCHIVE_BYTES + 1)
    except OSError as fault:
        raise StorageError(f"{file}: {fault.strerror}") from fault
    if len(data) > MAX_ARCHIVE_BYTES:
        raise ArchiveInvalid(f"archive: {file} is larger than any that can be taken, {MAX_ARCHIVE_BYTES} bytes")
    return data
