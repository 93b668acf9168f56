"""Who makes a change: the running daemon, or, where none runs and `--offline` is given, this process on the files."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from respsd.cli.connection import usual_address
from respsd.cli.policy.reading import service_faults
from respsd.control.policy_change import OPERATOR, Intent, Operator
from respsd.paths import POLICIES, state_dir


def intent_of(reason: str, *, dry_run: bool) -> Intent:
    """What the user of this machine's account asks for."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as containers have them
        name = "unknown"
    return Intent(OPERATOR + name, reason, dry_run=dry_run)


@contextmanager
def operator(address: str | None, folder: Path | None, *, offline: bool) -> Iterator[Operator]:
    """The daemon at the address, or the files of the state folder."""
    if offline:
        from respsd.cli.policy.offline import operator_on_files

        with operator_on_files((folder or state_dir()) / POLICIES) as on_files:
            yield on_files
        return
    address = address or usual_address(folder)
    from respsd.cli.policy.remote import RemoteOperator
    from respsd_client import Client

    with service_faults(address), Client(address) as client:
        yield RemoteOperator(client)
