"""How commands find the running daemon, and how they end where it does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from respsd.cli.exit_codes import ExitCode, of_status
from respsd.cli.output import print_message
from respsd.paths import SOCKET, is_socket, socket_path, state_dir

if TYPE_CHECKING:
    from respsd_client import Client

SYSTEM_SOCKET = Path("/run/respsd") / SOCKET
"""Of the system service."""

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT|unix:PATH",
        envvar="RESPSD_ADDRESS",
        help="The daemon.",
        show_default="its UNIX socket in the state folder or /run/respsd, else 127.0.0.1:7470",
    ),
]
TIMEOUT_SECONDS = 10.0
"""For answers that take the daemon no time."""


def usual_address(folder: Path | None = None) -> str:
    """Where a daemon of this user, or else the system's, can be expected; a socket that may be used comes first.

    :param folder: the state folder that was asked for by name; the system's daemon is then none that is meant
    """
    from respsd_client import DEFAULT_ADDRESS

    sockets = (socket_path(state_dir()), SYSTEM_SOCKET) if folder is None else (socket_path(folder),)
    for socket in sockets:
        if is_socket(socket) and os.access(socket, os.W_OK):
            return f"unix:{socket}"
    return DEFAULT_ADDRESS


@contextmanager
def connected(address: str | None) -> Iterator[Client]:
    """A client of the daemon; a call that fails ends the command with one line and the exit code of its status."""
    from respsd_client import Client, ServiceError

    address = address or usual_address()
    try:
        with Client(address) as client:
            yield client
    except ServiceError as fault:
        print_message(f"respsd: {address}: {' '.join(fault.message.split())}")
        raise typer.Exit(of_status(fault.code.name)) from fault
    except ValueError as fault:  # an address or credentials that cannot be
        print_message(f"respsd: {fault}")
        raise typer.Exit(ExitCode.USAGE) from fault
