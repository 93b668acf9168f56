"""What the settings name outside of themselves: the token file, certificates, the packages of tracing, addresses."""

from __future__ import annotations

import socket

from respsd.address import split_host_port
from respsd.errors import CannotListen
from respsd.service.auth import Tokens
from respsd.service.tls import TlsFiles
from respsd.settings import Settings
from respsd.telemetry.tracing import check_packages


def check_files(settings: Settings) -> None:
    """Look at files and packages; raises SettingsError on the first fault."""
    read_tls(settings)
    read_tokens(settings)
    if settings.tracing.endpoint is not None:
        check_packages()


def check_start(settings: Settings) -> None:
    """Look at all that would stop a daemon once its models have loaded, which takes minutes.

    Raises SettingsError on files and packages, CannotListen where an address is taken or not this machine's.
    """
    check_files(settings)
    for name, address in (("listen", settings.listen), ("metrics", settings.metrics)):
        if address is not None and not address.startswith("unix:"):
            _check_free(name, address)


def _check_free(name: str, address: str) -> None:
    host, port = split_host_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # what a daemon before this one left is no fault
            probe.bind(place)
    except OSError as error:
        raise CannotListen(name, address, error.strerror or str(error)) from error


def read_tokens(settings: Settings) -> Tokens | None:
    """The token file's content, where the settings name one; raises SettingsError."""
    return Tokens.read(settings.auth.tokens) if settings.auth.tokens is not None else None


def read_tls(settings: Settings) -> TlsFiles | None:
    """The certificate, where the settings name one; raises SettingsError."""
    return TlsFiles.of(settings.tls) if settings.tls.certificate is not None else None
