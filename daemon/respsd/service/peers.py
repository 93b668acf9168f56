"""The UNIX socket, on which the kernel says which user calls.

gRPC does not tell a handler the user behind a UNIX connection. So the socket that users connect to is this module's: it
reads each connection's credentials (SO_PEERCRED) and carries its bytes to a socket of gRPC's own, in a folder that only
the daemon can enter. Towards gRPC each connection is bound to a name of its own, by which a call's `peer` finds the
credentials again.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import itertools
import os
import pwd
import secrets
import shutil
import socket
import struct
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import structlog

from respsd.errors import CannotListen, SettingsError
from respsd.service.auth import ANY, USERS, Access, Caller

log = structlog.get_logger(__name__)

SOCKET_MODE = 0o660
"""Owner and group may connect; the folder's mode decides further."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_CHUNK = 1 << 16
_BACKLOG = 128


class PeerSocket:
    """Listens at a path, and relays every connection to `inner`, where gRPC listens."""

    def __init__(self, path: Path, access: Access) -> None:
        if not hasattr(socket, "SO_PEERCRED"):
            raise SettingsError("listen: UNIX sockets need a system that names the user of a connection (SO_PEERCRED)")
        self._access = access
        self._path = path
        self._folder = Path(tempfile.mkdtemp(prefix="respsd-"))  # only this user may enter
        self._users: dict[str, LocalUser] = {}
        self._names = itertools.count()
        self._nonce = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def inner(self) -> str:
        """Where gRPC is to listen."""
        return f"unix:{self._folder / 'grpc.sock'}"

    def caller(self, peer: str) -> Caller | None:
        """See `auth.Peers.caller`."""
        user = self._users.get(urllib.parse.unquote(peer))
        return None if user is None else user.caller(self._access.admin_group)  # which a reload may have changed

    async def start(self) -> None:
        """Take connections; raises CannotListen where the path is another process's or cannot be used now.

        Raises SettingsError where it can never be.
        """
        if _answers(self._path):
            raise CannotListen("listen", f"unix:{self._path}", "another process answers there")
        try:
            with contextlib.suppress(FileNotFoundError):
                if self._path.is_socket():
                    self._path.unlink()  # a daemon that was killed left it
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self._path))
            self._path.chmod(SOCKET_MODE)
        except OSError as error:
            if error.errno is None:  # the path is too long
                raise SettingsError(f"listen: cannot listen at unix:{self._path}: {error}") from error
            raise CannotListen("listen", f"unix:{self._path}", os.strerror(error.errno)) from error
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, backlog=_BACKLOG, limit=_CHUNK)

    async def stop(self) -> None:
        """Take no more connections, end those there are, remove the files; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        name = f"\0respsd-{self._nonce}-{next(self._names)}"
        key = f"unix-abstract:{name[1:]}"
        try:
            _, uid, gid = _CREDENTIALS.unpack(_peer_credentials(writer))
            self._users[key] = await asyncio.to_thread(LocalUser.of, uid, gid)
            await self._carry(reader, writer, name)
        except (OSError, asyncio.CancelledError) as error:
            log.debug("connection_ended", error=str(error))
        finally:
            writer.close()
            self._users.pop(key, None)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        """Carry bytes both ways until either side ends the connection."""
        inner = socket.socket(socket.AF_UNIX)
        inner.setblocking(False)
        inner.bind(name)
        inner.connect(self.inner.removeprefix("unix:"))
        inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inner, limit=_CHUNK)
        pumps = {asyncio.create_task(_pump(reader, inner_writer)), asyncio.create_task(_pump(inner_reader, writer))}
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            inner_writer.close()


@dataclass(frozen=True, slots=True)
class LocalUser:
    """A user of this machine."""

    uid: int
    name: str
    groups: frozenset[str]

    @classmethod
    def of(cls, uid: int, gid: int) -> LocalUser:
        """Look a user up; one without an account has a number for a name, and no group that could be asked for."""
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, str(uid), frozenset())
        groups = set()
        for number in os.getgrouplist(account.pw_name, gid):
            with contextlib.suppress(KeyError):
                groups.add(grp.getgrgid(number).gr_name)
        return cls(uid, account.pw_name, frozenset(groups))

    def caller(self, admin_group: str | None) -> Caller:
        """Root, the daemon's own user and the group's members may everything."""
        is_admin = self.uid in (0, os.geteuid()) or (admin_group is not None and admin_group in self.groups)
        return Caller(f"{self.name}@localhost", ANY if is_admin else USERS)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way; a slow reader on the far side slows the near one."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def _peer_credentials(writer: asyncio.StreamWriter) -> bytes:
    connection: socket.socket = writer.get_extra_info("socket")
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
