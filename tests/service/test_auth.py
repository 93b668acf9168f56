"""Tokens, roles, and which call needs which."""

from __future__ import annotations

import hashlib
from pathlib import Path

import grpc
import pytest
import structlog
from support.serving import served

from respsd.engine.stub import StubEngine
from respsd.errors import PermissionDenied, SettingsError, Unauthenticated
from respsd.service.auth import (
    ANY,
    ANYONE,
    Access,
    Authorizer,
    Caller,
    Role,
    Tokens,
    current_caller,
    needed_roles,
    new_token,
)
from respsd.service.oip import open_inference_pb2
from respsd.service.server import SERVICES
from respsd_client import AsyncClient, ServiceError
from respsd_client.v1 import generation_pb2, policy_pb2, status_pb2

SECRET = "a-secret-of-many-letters"
GENERATE = "/respsd.v1.GenerationService/Generate"
LIST = "/respsd.v1.PolicyService/ListPolicies"
PROMOTE = "/respsd.v1.PolicyService/PromotePolicy"


def token_file(tmp_path: Path, *lines: str, mode: int = 0o600) -> Path:
    file = tmp_path / "tokens"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(mode)
    return file


def tokens_of(tmp_path: Path) -> Tokens:
    return Tokens.read(
        token_file(
            tmp_path,
            "# who   roles           secret",
            "",
            f"alice   generate        {SECRET}",
            f"probe   read            sha256:{hashlib.sha256(b'probe-secret-0123').hexdigest()}",
            "both    generate,read   both-secret-012345",
            "boss    admin           boss-secret-012345",
        )
    )


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


def test_plain_and_hashed_secrets_find_their_callers(tmp_path: Path):
    tokens = tokens_of(tmp_path)
    assert tokens.find(SECRET) == Caller("alice", Role.GENERATE)
    assert tokens.find("probe-secret-0123") == Caller("probe", Role.READ)
    assert tokens.find("both-secret-012345") == Caller("both", Role.GENERATE | Role.READ)
    for wrong in ("", SECRET[:-1], SECRET + "x", "ä" * 20, hashlib.sha256(b"probe-secret-0123").hexdigest()):
        assert tokens.find(wrong) is None
    assert SECRET not in repr(tokens)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("alice generate", "line 1: write NAME ROLES SECRET"),
        ("a/b generate 0123456789abcdef", "line 1: 'a/b' is no name"),
        ("alice write 0123456789abcdef", "line 1: 'write' is no role; known are generate, read, admin"),
        ("alice generate, 0123456789abcdef", "line 1: '' is no role"),
        ("alice generate short", "line 1: a secret has at least 16 characters"),
        ("alice generate sha256:12", "line 1: a hash is written sha256: and 64"),
        ("alice generate sha256:" + "x" * 64, "line 1: a hash is written sha256: and 64"),
        ("a read 0123456789abcdef\nb read 0123456789abcdef", "line 2: a has the same secret"),
        ("# nobody", "holds no token"),
    ],
)
def test_a_wrong_line_is_refused_without_its_secret(tmp_path: Path, line: str, fault: str):
    with pytest.raises(SettingsError) as caught:
        Tokens.read(token_file(tmp_path, *line.split("\n")))
    assert fault in str(caught.value)
    assert "0123456789abcdef" not in str(caught.value)


def test_a_file_that_all_users_may_read_is_refused(tmp_path: Path):
    line = f"alice generate {SECRET}"
    with pytest.raises(SettingsError, match="chmod o-rwx"):
        Tokens.read(token_file(tmp_path, line, mode=0o604))
    assert Tokens.read(token_file(tmp_path, line, mode=0o640)).find(SECRET) is not None
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        Tokens.read(tmp_path / "none")


def test_a_new_token_is_found_by_its_line_and_is_not_in_it(tmp_path: Path):
    token, line = new_token("carol", "generate,read")
    assert token not in line
    assert Tokens.read(token_file(tmp_path, line)).find(token) == Caller("carol", Role.GENERATE | Role.READ)
    assert new_token("carol", "read")[0] != token
    with pytest.raises(SettingsError, match="no role"):
        new_token("carol", "root")


def test_every_call_has_its_roles():
    """A call that changes something is the admin's, one that nobody thought of too."""
    needed = {}
    for file in (generation_pb2, policy_pb2, status_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            assert service.full_name in SERVICES
            needed.update({name: needed_roles(f"/{service.full_name}/{name}") for name in service.methods_by_name})
    admin = {name for name, roles in needed.items() if roles == Role.ADMIN}
    reading = {name for name, roles in needed.items() if roles == Role.READ | Role.ADMIN}
    generating = {name for name, roles in needed.items() if roles == Role.GENERATE | Role.ADMIN}
    assert {"Generate", "GenerateStream", "Tokenize"} <= generating
    assert needed["GetModelInfo"] == ANY
    assert {"ListPolicies", "GetLoad", "GetStatus", "ListRequests"} <= reading
    assert {"PromotePolicy", "RollbackPolicy", "FreezeLearning", "TrainNow", "DeletePolicy"} <= admin
    assert not any(name.startswith(("List", "Get")) for name in admin)
    assert needed_roles("/other.Service/GetAnything") == Role.READ | Role.ADMIN
    assert needed_roles("/other.Service/Do") == Role.ADMIN
    assert needed_roles("/grpc.health.v1.Health/Check") is None


def test_the_open_inference_protocol_has_the_roles_of_generation():
    names = open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    needed = {name: needed_roles(f"/inference.GRPCInferenceService/{name}") for name in names}
    assert needed == {
        "ServerLive": None,
        "ServerReady": None,
        "ModelReady": None,
        "ServerMetadata": ANY,
        "ModelMetadata": ANY,
        "ModelInfer": Role.GENERATE | Role.ADMIN,
    }
    assert needed_roles("/inference.GRPCInferenceService/RepositoryModelUnload") == Role.GENERATE | Role.ADMIN


def test_roles_decide(tmp_path: Path):
    authorizer = Authorizer(Access(tokens_of(tmp_path)))
    allowed = {
        (secret, method)
        for secret in (SECRET, "probe-secret-0123", "both-secret-012345", "boss-secret-012345")
        for method in (GENERATE, LIST, PROMOTE)
        if is_allowed(authorizer, method, secret)
    }
    assert allowed == {
        (SECRET, GENERATE),
        ("probe-secret-0123", LIST),
        ("both-secret-012345", GENERATE),
        ("both-secret-012345", LIST),
        ("boss-secret-012345", GENERATE),
        ("boss-secret-012345", LIST),
        ("boss-secret-012345", PROMOTE),
    }


def is_allowed(authorizer: Authorizer, method: str, secret: str) -> bool:
    try:
        authorizer.authorize(method, "ipv4:127.0.0.1:1", bearer(secret))
    except PermissionDenied:
        return False
    return True


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Basic YTpi"),),
        (("authorization", "Bearer "),),
        (("authorization", SECRET),),
        bearer("x"),
    ],
)
def test_without_a_good_token_nobody_is_let_in(tmp_path: Path, metadata):
    with pytest.raises(Unauthenticated) as caught:
        Authorizer(Access(tokens_of(tmp_path))).authorize(GENERATE, "ipv4:127.0.0.1:1", metadata)
    assert SECRET not in str(caught.value)


def test_without_a_token_file_callers_change_nothing():
    authorizer = Authorizer(Access())
    assert authorizer.authorize(GENERATE, "ipv4:127.0.0.1:1", ()) == ANYONE
    assert authorizer.authorize(LIST, "ipv4:127.0.0.1:1", bearer("whatever")) == ANYONE
    with pytest.raises(PermissionDenied, match="anyone may not do this; it needs one of the roles admin"):
        authorizer.authorize(PROMOTE, "ipv4:127.0.0.1:1", ())
    assert authorizer.authorize(GENERATE, "ipv4:127.0.0.1:1", (), "client-7").name == "client-7"


class Socket:
    """Knows one connection."""

    def caller(self, peer: str) -> Caller | None:
        return Caller("ann@localhost", Role.READ) if peer == "unix-abstract:1" else None


def test_on_the_socket_the_user_counts_and_a_token_adds_to_it(tmp_path: Path):
    authorizer = Authorizer(Access(tokens_of(tmp_path)), Socket())
    assert authorizer.authorize(LIST, "unix-abstract:1", ()) == Caller("ann@localhost", Role.READ)
    with pytest.raises(PermissionDenied, match="ann@localhost"):
        authorizer.authorize(GENERATE, "unix-abstract:1", ())
    both = authorizer.authorize(GENERATE, "unix-abstract:1", bearer(SECRET))
    assert both == Caller("alice", Role.GENERATE | Role.READ)
    with pytest.raises(Unauthenticated):
        authorizer.authorize(LIST, "unix:", ())


async def test_calls_end_with_clear_codes_and_name_their_caller(tmp_path: Path):
    access = Access(tokens_of(tmp_path))
    async with served(StubEngine(), access=access) as server:
        async with AsyncClient(server.address) as client:
            with pytest.raises(ServiceError) as caught:
                await client.generate("x", max_new_tokens=1)
            assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
            assert "authorization: Bearer TOKEN" in caught.value.message
            assert caught.value.request_id is not None
        async with AsyncClient(server.address, token=SECRET) as client:
            with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
                assert (await client.generate("x", max_new_tokens=2)).completion_tokens == 2
                assert [chunk async for chunk in client.stream("x", max_new_tokens=2)]
                with pytest.raises(ServiceError) as caught:
                    await client.list_policies()
            assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.message == "alice may not do this; it needs one of the roles read,admin"
            assert {line["caller"] for line in lines if line["event"] == "request_finished"} == {"alice"}
            assert SECRET not in str(lines)
        access.tokens = Tokens.read(token_file(tmp_path, "bob generate another-secret-0123"))
        async with AsyncClient(server.address, token=SECRET) as client:
            with pytest.raises(ServiceError, match="UNAUTHENTICATED: the token is not one of this daemon's"):
                await client.generate("x", max_new_tokens=1)


def test_without_anybody_who_checks_everything_is_allowed():
    assert current_caller() == Caller("anyone", ANY)
