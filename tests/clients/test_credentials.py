"""What clients prove themselves with: files that cannot be read, and what the environment gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.certificates import Authority
from support.serving import ServerThread
from typer.testing import CliRunner

from respsd.cli import main
from respsd.engine.stub import StubEngine
from respsd.service.tls import TlsFiles
from respsd_client import AsyncClient, Client, Tls

ADDRESS = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RESPSD_"):
            monkeypatch.delenv(name)


def test_a_file_that_cannot_be_read_is_named_with_its_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tls: .*none\.pem cannot be read: No such file"):
        Client(ADDRESS, tls=Tls(ca=tmp_path / "none.pem"))
    monkeypatch.setenv("RESPSD_CA", str(tmp_path))
    with pytest.raises(ValueError, match=rf"tls: {tmp_path} cannot be read: Is a directory"):
        Client(ADDRESS)


async def test_an_asyncio_client_names_it_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tls: .*none\.pem cannot be read: No such file"):
        AsyncClient(ADDRESS, tls=Tls(ca=tmp_path / "none.pem"))


def test_a_command_shows_the_certificate_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server, mine = authority.issue("server"), authority.issue("client-7")
    files = TlsFiles(server.certificate, server.key, authority.file)
    with ServerThread(StubEngine(), tls=files) as daemon:
        monkeypatch.setenv("RESPSD_CA", str(authority.file))
        status = ["status", "--address", daemon.address]
        assert CliRunner().invoke(main.app, status).exit_code == 3  # no certificate, no connection
        monkeypatch.setenv("RESPSD_CERTIFICATE", str(mine.certificate))
        monkeypatch.setenv("RESPSD_KEY", str(mine.key))
        assert CliRunner().invoke(main.app, status).exit_code == 0
        monkeypatch.delenv("RESPSD_KEY")
        refused = CliRunner().invoke(main.app, status)
        assert (refused.exit_code, refused.stderr) == (
            2,
            "respsd: set both RESPSD_CERTIFICATE and RESPSD_KEY, or neither\n",
        )
