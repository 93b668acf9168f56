"""Files and packages that the settings name are looked at before anything that takes time."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
from support.certificates import Authority

from respsd import daemon
from respsd.errors import CannotListen, SettingsError
from respsd.settings import Settings
from respsd.settings_access import AuthSettings, TlsSettings, TracingSettings
from respsd.settings_files import check_files, check_start

TRACED = Settings(tracing=TracingSettings(endpoint="127.0.0.1:4317"))


@pytest.fixture
def _no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)


def test_settings_that_name_nothing_or_what_is_there_pass(tmp_path: Path) -> None:
    check_files(Settings())
    pair = Authority(tmp_path).issue("server")
    tokens = tmp_path / "tokens"
    tokens.write_text("alice generate a-token-of-many-letters\n")
    tokens.chmod(0o600)
    tls = TlsSettings(certificate=pair.certificate, key=pair.key)
    check_files(Settings(tls=tls, auth=AuthSettings(tokens=tokens)))
    check_files(TRACED)


@pytest.mark.usefixtures("_no_tracing")
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (Settings(auth=AuthSettings(tokens=Path("/none/tokens"))), "auth.tokens: /none/tokens cannot be read"),
        (Settings(tls=TlsSettings(certificate=Path("/none/c"), key=Path("/none/k"))), "tls: /none/c cannot be read"),
        (TRACED, "tracing.endpoint: tracing needs more packages; install respsd[otel]"),
    ],
)
def test_a_daemon_refuses_them_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, fault: str
) -> None:
    monkeypatch.setattr(daemon, "load_served_models", lambda settings: pytest.fail("a model is loaded"))
    with pytest.raises(SettingsError, match=re.escape(fault)):
        daemon.serve(settings)


@pytest.mark.parametrize("name", ["listen", "metrics"])
def test_an_address_that_is_taken_is_told_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(daemon, "load_served_models", lambda settings: pytest.fail("a model is loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        settings = Settings(**{"listen": "127.0.0.1:0", name: taken})  # type: ignore[arg-type]
        with pytest.raises(CannotListen, match=f"{name}: cannot listen at {taken}: Address already in use"):
            daemon.serve(settings)
    check_start(settings)
    check_start(Settings(listen="unix:/tmp/any"))
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1"):  # kept for examples, so no machine's
        check_start(Settings(listen="192.0.2.1:7470", insecure=True))
