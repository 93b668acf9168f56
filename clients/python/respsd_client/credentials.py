"""How a client proves who it is, and how it knows the daemon: TLS and bearer tokens.

Both can come from the environment, so that they stand in no program: `RESPSD_TOKEN` is the token, `RESPSD_CA` a file of
authorities, which turns TLS on, `RESPSD_CERTIFICATE` with `RESPSD_KEY` the client's own certificate, which does too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc

TOKEN_VARIABLE = "RESPSD_TOKEN"
CA_VARIABLE = "RESPSD_CA"
CERTIFICATE_VARIABLE = "RESPSD_CERTIFICATE"
KEY_VARIABLE = "RESPSD_KEY"


@dataclass(frozen=True, slots=True)
class Tls:
    """Encrypt, with PEM files; `Tls()` trusts the system's authorities."""

    ca: str | Path | None = None
    """Authorities that the daemon's certificate must come from; None for the system's."""
    certificate: str | Path | None = None
    """This client's own certificate, where the daemon asks for one; `key` goes with it."""
    key: str | Path | None = None
    server_name: str | None = None
    """Name that the daemon's certificate must have, where it is not the address's host."""

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC wants them; raises ValueError where a file is not given or cannot be read."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give both certificate and key, or neither")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client was given, completed from the environment."""

    tls: Tls | None
    token: str | None

    @classmethod
    def of(cls, address: str, *, is_local: bool, tls: Tls | None, token: str | None) -> Credentials:
        """Raises ValueError where the variables contradict each other.

        :param is_local: whether the address is this machine's; elsewhere a token without TLS is a ValueError
        """
        if tls is None and not address.startswith("unix:"):
            tls = _tls_of_environment()
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        if token is not None and tls is None and not is_local:
            raise ValueError(f"the token would travel to {address} unencrypted; give tls too")
        return cls(tls, token)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def _tls_of_environment() -> Tls | None:
    """TLS as the variables say; None where none of them is set."""
    names = CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
    ca, certificate, key = (os.environ.get(name) or None for name in names)
    if (certificate is None) != (key is None):
        raise ValueError(f"set both {CERTIFICATE_VARIABLE} and {KEY_VARIABLE}, or neither")
    return None if ca is None and certificate is None else Tls(ca, certificate, key)


def _read(file: str | Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"tls: {file} cannot be read: {error.strerror}") from error
