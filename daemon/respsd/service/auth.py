"""Who calls, and what they may call.

Over TCP a caller is a bearer token (`authorization: Bearer ...`), or nobody in particular where the daemon has no token
file; over the UNIX socket a caller is a user of this machine, whom the kernel names. Each has roles:

- generate: generation and tokenizing
- read: status, requests, policies
- admin: all of that, and changing policies
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from respsd.errors import PermissionDenied, SettingsError, Unauthenticated


class Role(enum.Flag):
    """What a caller may do."""

    GENERATE = enum.auto()
    READ = enum.auto()
    ADMIN = enum.auto()

    @property
    def words(self) -> str:
        """As the token file writes them."""
        return ",".join(role.name.lower() for role in Role if role in self and role.name)


ANY = Role.GENERATE | Role.READ | Role.ADMIN
"""One of these is enough for calls that only tell what is served."""
USERS = Role.GENERATE | Role.READ

_OPEN = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
"""For load balancers and grpcurl: they tell nothing but names and liveness."""
_PROBES = ("ServerLive", "ServerReady", "ModelReady")
"""Of the Open Inference Protocol; the same for its load balancers."""
_GENERATION = ("respsd.v1.GenerationService", "inference.GRPCInferenceService")
_READING = ("Get", "List", "Watch", "Explain", "Diff", "Export")
"""First words of calls that change nothing."""

TOKEN_BYTES = 32
_HASH = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_MIN_SECRET = 16
_WORLD = 0o007


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as logs and the policies' audit name them."""

    name: str
    roles: Role


ANYONE = Caller("anyone", USERS)
"""Whoever calls over TCP where there is no token file."""

_caller: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """Who makes the call that is being handled; everything is allowed where nothing checks callers."""
    return _caller.get(Caller("anyone", ANY))


def use_caller(caller: Caller) -> None:
    """Note who makes the call that is being handled."""
    _caller.set(caller)


def needed_roles(method: str) -> Role | None:
    """Roles of which a caller needs one to call `/package.Service/Method`; None where everybody may.

    A call that is not known to change nothing is the admin's.
    """
    service, _, name = method.removeprefix("/").partition("/")
    if service in _OPEN or (service == _GENERATION[1] and name in _PROBES):
        return None
    if service in _GENERATION:
        return ANY if name.startswith("Get") or name.endswith("Metadata") else Role.GENERATE | Role.ADMIN
    return Role.READ | Role.ADMIN if name.startswith(_READING) else Role.ADMIN


class Peers(Protocol):
    """Knows the users behind connections to the UNIX socket."""

    def caller(self, peer: str) -> Caller | None:
        """The caller behind gRPC's name of a connection; None where it did not come through the socket."""
        ...


@dataclass(slots=True)
class Access:
    """Who may call what; its parts may be replaced while calls come in."""

    tokens: Tokens | None = None
    admin_group: str | None = None


class Authorizer:
    """Decides on each call."""

    def __init__(self, access: Access, peers: Peers | None = None) -> None:
        self._access = access
        self._peers = peers

    def authorize(
        self, method: str, peer: str, metadata: Iterable[tuple[str, str | bytes]], subject: str | None = None
    ) -> Caller:
        """The caller, if allowed; raises Unauthenticated or PermissionDenied.

        :param peer: gRPC's name of the connection
        :param subject: common name of the client's certificate, where it had to show one
        """
        needed = needed_roles(method)
        if needed is None:
            return ANYONE
        caller = self._identify(peer, _bearer(metadata), subject)
        if not caller.roles & needed:
            raise PermissionDenied(caller.name, needed.words)
        return caller

    def _identify(self, peer: str, secret: str | None, subject: str | None) -> Caller:
        tokens = self._access.tokens
        user = self._peers.caller(peer) if self._peers is not None else None
        if tokens is None or (secret is None and user is not None):
            # Without a token file a token proves nothing and harms nothing: clients may send theirs everywhere.
            return user or (Caller(subject, USERS) if subject else ANYONE)
        if secret is None:
            raise Unauthenticated("this daemon needs a token: send authorization: Bearer TOKEN")
        caller = tokens.find(secret)
        if caller is None:
            raise Unauthenticated("the token is not one of this daemon's")
        return caller if user is None else Caller(caller.name, caller.roles | user.roles)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token file's content; secrets are kept as hashes only."""

    callers: Mapping[bytes, Caller]
    """By the secret's SHA-256."""

    @classmethod
    def read(cls, file: Path) -> Tokens:
        """Read `NAME ROLES SECRET` lines, SECRET plain or `sha256:HEX`; raises SettingsError naming file and line."""
        try:
            if file.stat().st_mode & _WORLD:
                raise SettingsError(f"auth.tokens: {file} must not be open to all users; chmod o-rwx it")
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise SettingsError(f"auth.tokens: {file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"auth.tokens: {file} is not UTF-8 text") from error
        callers: dict[bytes, Caller] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                digest, caller = _entry(line.split())
                if digest in callers:
                    raise ValueError(f"{callers[digest].name} has the same secret")
            except ValueError as error:
                raise SettingsError(f"auth.tokens: {file}, line {number}: {error}") from error
            callers[digest] = caller
        if not callers:
            raise SettingsError(f"auth.tokens: {file} holds no token")
        return cls(callers)

    def find(self, secret: str) -> Caller | None:
        """The caller with this secret, in a time that does not depend on how much of it is right."""
        asked = hashlib.sha256(secret.encode()).digest()
        found = None
        for digest, caller in self.callers.items():
            if hmac.compare_digest(digest, asked):
                found = caller
        return found


def new_token(name: str, roles: str) -> tuple[str, str]:
    """A random token, and the line of the token file that lets it in; raises SettingsError."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    line = f"{name} {roles} {_HASH}{hashlib.sha256(token.encode()).hexdigest()}"
    try:
        _entry(line.split())
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return token, line


def _entry(words: list[str]) -> tuple[bytes, Caller]:
    """A line's secret, hashed, and its caller; raises ValueError, which does not repeat the secret."""
    if len(words) != 3:
        raise ValueError("write NAME ROLES SECRET, for instance: alice generate,read sha256:...")
    name, roles, secret = words
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name; use 1 to 64 letters, digits and . _ @ -")
    return _digest(secret), Caller(name, _roles(roles))


def _roles(text: str) -> Role:
    roles = Role(0)
    for word in text.split(","):
        if word not in (known := {role.name.lower(): role for role in Role if role.name}):
            raise ValueError(f"{word!r} is no role; known are {', '.join(known)}")
        roles |= known[word]
    return roles


def _digest(secret: str) -> bytes:
    if secret.startswith(_HASH):
        digest = bytes.fromhex(secret.removeprefix(_HASH)) if re.fullmatch(r"sha256:[0-9a-fA-F]*", secret) else b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError("a hash is written sha256: and 64 hexadecimal digits")
        return digest
    if len(secret) < _MIN_SECRET:
        raise ValueError(f"a secret has at least {_MIN_SECRET} characters")
    return hashlib.sha256(secret.encode()).digest()


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token that the caller sent; raises Unauthenticated where it is no bearer token."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, secret = value.partition(" ")
            if scheme.lower() != "bearer" or not secret.strip():
                raise Unauthenticated("the authorization header must read: Bearer TOKEN")
            return secret.strip()
    return None
