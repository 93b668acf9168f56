"""Settings of who may connect, how, and where traces go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from respsd.address import check_host_port
from respsd.settings_section import Section

HostPort = Annotated[str, AfterValidator(check_host_port)]
OptionalFile = Annotated[Path, AfterValidator(Path.expanduser)] | None
"""A file, or none; `~` is the user's home."""


class TlsSettings(Section):
    """Encryption of the gRPC address, from PEM files that are read again when they change."""

    certificate: OptionalFile = None
    """The server's certificate, followed by those that lead to its authority."""
    key: OptionalFile = None
    """The certificate's private key."""
    client_ca: OptionalFile = None
    """Authorities of client certificates; with it every client must show one (mutual TLS)."""

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give both certificate and key, or neither")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        return self


class AuthSettings(Section):
    """Who may call what. On the UNIX socket the caller's user decides, elsewhere a bearer token."""

    tokens: OptionalFile = None
    """File of bearer tokens, `NAME ROLES SECRET` a line, where every caller over TCP needs one. Without it such callers
    may generate and read, and change nothing."""
    admin_group: str | None = Field(default=None, min_length=1)
    """Group whose members may change policies over the UNIX socket, as root and the daemon's own user always may."""


class TracingSettings(Section):
    """OpenTelemetry traces, which need the packages of `respsd[otel]`."""

    endpoint: HostPort | None = None
    """HOST:PORT of an OTLP/gRPC collector; without it no spans are made."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of requests that are traced where the caller's traceparent does not decide it."""
