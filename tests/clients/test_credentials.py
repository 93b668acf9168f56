"""What clients prove themselves with: files that cannot be read, and what the environment gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
