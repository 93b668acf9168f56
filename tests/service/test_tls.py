"""TLS on the wire: trust, client certificates, renewal without a restart, and files that are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog
from support.certificates import Authority, Pair
from support.serving import served

from respsd.engine.stub import StubEngine
from respsd.errors import SettingsError
from respsd.service.auth import Access
from respsd.service.tls import TlsFiles
from respsd.settings_access import TlsSettings
from respsd_client import AsyncClient, ServiceError, Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def tokens(address: str, tls: Tls | None) -> int:
    async with AsyncClient(address, tls=tls) as client:
        return (await client.generate("x", max_new_tokens=3, timeout=20)).completion_tokens


async def is_refused(address: str, tls: Tls | None) -> bool:
    with pytest.raises(ServiceError) as caught:
        await tokens(address, tls)
    return caught.value.code.name == "UNAVAILABLE"


async def test_only_who_trusts_the_authority_connects(tmp_path: Path, authority: Authority):
    pair = authority.issue("server")
    stranger = Authority(tmp_path, "stranger")
    async with served(StubEngine(), tls=TlsFiles(pair.certificate, pair.key)) as server:
        assert await tokens(server.address, Tls(ca=authority.file)) == 3
        assert await is_refused(server.address, Tls(ca=stranger.file))
        assert await is_refused(server.address, None)


async def test_mutual_tls_lets_in_certified_clients_and_names_them(tmp_path: Path, authority: Authority):
    pair, mine = authority.issue("server"), authority.issue("client-7")
    forged = Authority(tmp_path, "stranger").issue("client-8")
    files = TlsFiles(pair.certificate, pair.key, authority.file)
    async with served(StubEngine(), tls=files, access=Access()) as server:
        with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
            assert await tokens(server.address, Tls(authority.file, mine.certificate, mine.key)) == 3
        assert [line["caller"] for line in lines if line["event"] == "request_finished"] == ["client-7"]
        assert await is_refused(server.address, Tls(authority.file))
        assert await is_refused(server.address, Tls(authority.file, forged.certificate, forged.key))


async def test_a_renewed_certificate_serves_the_next_connection(tmp_path: Path, authority: Authority):
    pair = authority.issue("server")
    renewed = Authority(tmp_path, "renewed")
    async with (
        served(StubEngine(), tls=TlsFiles(pair.certificate, pair.key)) as server,
        AsyncClient(server.address, tls=Tls(authority.file)) as old,
    ):
        await old.model_info()
        renewed.issue("server", to=pair)
        assert await tokens(server.address, Tls(renewed.file)) == 3
        assert await is_refused(server.address, Tls(authority.file))
        assert (await old.generate("x", max_new_tokens=3)).completion_tokens == 3


async def test_files_that_break_change_nothing_and_are_logged_once(authority: Authority):
    pair = authority.issue("server")
    async with served(StubEngine(), tls=TlsFiles(pair.certificate, pair.key)) as server:
        pair.key.write_text("half a fi")
        with structlog.testing.capture_logs() as lines:
            for _ in range(2):
                assert await tokens(server.address, Tls(authority.file)) == 3
        assert [line["event"] for line in lines if line["log_level"] == "error"] == ["certificate_refused"]
        pair.key.unlink()
        assert await tokens(server.address, Tls(authority.file)) == 3
        authority.issue("server", to=pair)
        assert await tokens(server.address, Tls(authority.file)) == 3


async def test_a_file_whose_permissions_alone_were_wrong_is_read_again(authority: Authority):
    pair = authority.issue("server")
    files = TlsFiles(pair.certificate, pair.key)
    async with served(StubEngine(), tls=files) as server:
        content = pair.key.read_bytes()
        pair.key.write_bytes(bytes(len(content)))
        assert await tokens(server.address, Tls(authority.file)) == 3
        stat = pair.key.stat()
        pair.key.write_bytes(content)  # tests may run as root, whom no permissions stop
        os.utime(pair.key, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        with structlog.testing.capture_logs() as lines:
            assert await tokens(server.address, Tls(authority.file)) == 3
        assert [line["event"] for line in lines if "certificate" in line["event"]] == ["certificate_reloaded"]


async def test_a_reload_takes_files_from_elsewhere_or_refuses_them(tmp_path: Path, authority: Authority):
    pair = authority.issue("server")
    other = Authority(tmp_path, "other")
    moved = other.issue("moved")
    files = TlsFiles(pair.certificate, pair.key)
    async with served(StubEngine(), tls=files) as server:
        with pytest.raises(SettingsError, match="no certificate and its key"):
            files.reload(moved.certificate, pair.key)
        assert await tokens(server.address, Tls(authority.file)) == 3
        files.reload(moved.certificate, moved.key)
        assert await tokens(server.address, Tls(other.file)) == 3


def test_wrong_files_are_refused_at_the_start(tmp_path: Path, authority: Authority):
    pair, other = authority.issue("server"), authority.issue("other")
    with pytest.raises(SettingsError, match=r"server\.crt and .*other\.key are no certificate and its key"):
        TlsFiles(pair.certificate, other.key)
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        TlsFiles(pair.certificate, tmp_path / "none")
    with pytest.raises(SettingsError, match=r"tls\.client_ca: .*server\.key holds no authorities"):
        TlsFiles(pair.certificate, pair.key, pair.key)
    with pytest.raises(SettingsError, match="give certificate and key"):
        TlsFiles.of(TlsSettings())


def test_the_settings_name_the_files(authority: Authority):
    pair: Pair = authority.issue("server")
    TlsFiles.of(TlsSettings(certificate=pair.certificate, key=pair.key, client_ca=authority.file))
