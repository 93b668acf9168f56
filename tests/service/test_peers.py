"""The UNIX socket: its callers are the users whom the kernel names."""

from __future__ import annotations

import asyncio
import dataclasses
import grp
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd.service.auth import ANY, USERS, Access, Caller
from respsd.service.peers import LocalUser, PeerSocket
from respsd_client import AsyncClient, ServiceError

ME = f"{pwd.getpwuid(os.geteuid()).pw_name}@localhost"
OTHER_UID = 65534
"""nobody"""

ASK_AS_NOBODY = """
import os, sys
from respsd_client import Client, ServiceError
Client(sys.argv[1]).close()  # all modules are loaded before the user changes, who may not read this Python's files
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with Client(sys.argv[1]) as client:
    print([each.caller for each in client.list_requests()], client.generate("x", max_new_tokens=2).completion_tokens)
    try:
        client.freeze_learning(reason="because")
    except ServiceError as error:
        print(error)
"""


def test_roles_come_from_user_and_group():
    group = grp.getgrgid(os.getegid()).gr_name
    assert LocalUser.of(os.geteuid(), os.getegid()).caller(None) == Caller(ME, ANY)
    assert LocalUser.of(0, 0).caller(None).roles == ANY
    assert LocalUser.of(OTHER_UID, 65534).caller(None).roles == USERS
    assert LocalUser.of(OTHER_UID, os.getegid()).caller(group).roles == ANY
    assert LocalUser.of(OTHER_UID, 65534).caller("no-such-group").roles == USERS
    assert LocalUser.of(123_456, 65534).caller("root") == Caller("123456@localhost", USERS)


async def test_the_daemons_own_user_is_its_admin(tmp_path: Path):
    socket = tmp_path / "respsd.sock"
    async with served(StubEngine(), socket=socket, access=Access()) as server:
        assert server.addresses == (server.address, f"unix:{socket}")
        assert stat.S_IMODE(socket.stat().st_mode) == 0o660
        async with AsyncClient(f"unix:{socket}") as client:
            server_side = asyncio.create_task(client.generate("x", max_new_tokens=400))
            assert (await server_side).completion_tokens == 400
            with pytest.raises(ServiceError) as caught:  # allowed, but this server has nothing to change policies with
                await client.freeze_learning(reason="because")
            assert caught.value.code.name not in ("PERMISSION_DENIED", "UNAUTHENTICATED")
        async with AsyncClient(server.address) as client:
            with pytest.raises(ServiceError, match="PERMISSION_DENIED: anyone may not"):
                await client.freeze_learning(reason="because")
    assert not socket.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call as another user")
async def test_another_user_may_generate_and_read_only(tmp_path: Path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    socket = tmp_path / "respsd.sock"
    async with served(StubEngine(), socket=socket, access=Access()):
        socket.chmod(0o666)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            ASK_AS_NOBODY,
            f"unix:{socket}",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": "/"},
        )
        out, err = await process.communicate()
    lines = out.decode().splitlines()
    assert lines, err.decode()
    assert lines[0] == "[] 2"
    assert lines[1].startswith("PERMISSION_DENIED: nobody@localhost may not do this")


async def test_requests_in_flight_name_their_user(tmp_path: Path):
    engine = StubEngine()
    socket = tmp_path / "respsd.sock"
    async with served(engine, socket=socket, access=Access()), AsyncClient(f"unix:{socket}") as client:
        engine.gate.close()
        running = asyncio.create_task(client.generate("x", max_new_tokens=9, request_id="one"))
        await eventually(lambda: engine.load().waiting == 1)
        (listed,) = await client.list_requests()
        assert (listed.request_id, listed.caller, listed.state) == ("one", ME, "waiting")
        engine.gate.open()
        await running
        assert await client.list_requests() == []


async def test_a_client_that_goes_away_ends_its_request(tmp_path: Path):
    engine = StubEngine(context_length=10**8)
    socket = tmp_path / "respsd.sock"
    async with served(engine, socket=socket):
        async with AsyncClient(f"unix:{socket}") as client:
            stream = client.stream("x", max_new_tokens=10**7)
            await anext(stream)
            assert engine.load().running == 1
        await eventually(lambda: engine.load().running == 0)


async def test_connections_that_say_nothing_hold_up_nobody(tmp_path: Path):
    socket = tmp_path / "respsd.sock"
    async with served(StubEngine(), socket=socket), AsyncClient(f"unix:{socket}") as client:
        silent = [await asyncio.open_unix_connection(str(socket)) for _ in range(20)]
        silent[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await client.generate("x", max_new_tokens=3)).completion_tokens == 3
        for _, writer in silent:
            writer.close()
        assert (await client.generate("x", max_new_tokens=3)).completion_tokens == 3


async def test_credentials_are_forgotten_with_their_connection(tmp_path: Path):
    listener = await asyncio.start_unix_server(lambda reader, writer: writer.close(), str(tmp_path / "unused"))
    access = Access()
    peers = PeerSocket(tmp_path / "outer", access)
    inner = await asyncio.start_unix_server(lambda reader, writer: None, peers.inner.removeprefix("unix:"))
    await peers.start()
    _, writer = await asyncio.open_unix_connection(str(tmp_path / "outer"))
    await eventually(lambda: len(peers._users) == 1)
    ((name, user),) = peers._users.items()
    assert peers.caller(name) == Caller(ME, ANY)
    peers._users[name] = dataclasses.replace(user, uid=OTHER_UID, groups=frozenset({"operators"}))
    assert peers.caller(name) == Caller(ME, USERS)
    access.admin_group = "operators"  # by a reload, while the connection is open
    assert peers.caller(name) == Caller(ME, ANY)
    assert peers.caller("unix:") is None
    assert peers.caller("ipv4:127.0.0.1:1") is None
    writer.close()
    await eventually(lambda: peers._users == {})
    await peers.stop()
    await peers.stop()
    assert not (tmp_path / "outer").exists()
    inner.close()
    listener.close()
