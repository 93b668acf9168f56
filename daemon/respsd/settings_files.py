"""What the settings name outside of themselves: the token file, the certificates, and the packages of tracing."""

from __future__ import annotations

from respsd.service.auth import Tokens
from respsd.service.tls import TlsFiles
from respsd.settings import Settings
from respsd.telemetry.tracing import check_packages


def check_files(settings: Settings) -> None:
    """Look at all of it; raises SettingsError on the first fault. A daemon asks before it loads any model."""
    read_tls(settings)
    read_tokens(settings)
    if settings.tracing.endpoint is not None:
        check_packages()


def read_tokens(settings: Settings) -> Tokens | None:
    """The token file's content, where the settings name one; raises SettingsError."""
    return Tokens.read(settings.auth.tokens) if settings.auth.tokens is not None else None


def read_tls(settings: Settings) -> TlsFiles | None:
    """The certificate, where the settings name one; raises SettingsError."""
    return TlsFiles.of(settings.tls) if settings.tls.certificate is not None else None
