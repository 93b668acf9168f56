"""The grpcurl commands of clients/README.md name methods and fields that exist, and a daemon takes them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2  # noqa: F401  registers the health service's messages
from support.serving import served

from respsd.engine.stub import StubEngine
from respsd_client.v1 import generation_pb2, policy_pb2, status_pb2  # noqa: F401

README = Path(__file__).resolve().parents[2] / "clients" / "README.md"
WITH_VALUE = {"-d", "-H", "-cacert"}
FLAGS = {"-plaintext", "-unix"}


@dataclass(frozen=True)
class Example:
    """One command, taken apart as grpcurl does."""

    address: str
    verb: str
    """list, describe, or a method's name."""
    argument: str | None
    data: str


def examples() -> list[Example]:
    found = []
    for line in re.findall(r"^    grpcurl (.+)$", README.read_text(encoding="utf-8"), re.MULTILINE):
        words, data, rest = iter(shlex.split(line)), "{}", []
        for word in words:
            if word in WITH_VALUE:
                value = next(words)
                data = value if word == "-d" else data
            elif word not in FLAGS:
                assert not word.startswith("-"), word
                rest.append(word)
        address, verb, *argument = rest
        found.append(Example(address, verb, argument[0] if argument else None, data))
    return found


def method_of(name: str) -> MethodDescriptor:
    service, _, method = name.partition("/")
    return Default().FindServiceByName(service).methods_by_name[method]  # type: ignore[no-untyped-call]


def test_there_is_an_example_of_everything() -> None:
    verbs = [example.verb for example in examples()]
    assert {"list", "describe"} <= set(verbs)
    for service in ("GenerationService", "PolicyService", "StatusService"):
        assert any(service in verb for verb in verbs)


@pytest.mark.parametrize("example", examples(), ids=lambda example: f"{example.verb}-{len(example.data)}")
async def test_an_example_is_taken(example: Example) -> None:
    if example.verb == "list":
        return
    if example.verb == "describe":
        assert example.argument is not None
        assert Default().FindMessageTypeByName(example.argument)  # type: ignore[no-untyped-call]
        return
    method = method_of(example.verb)
    request = json_format.Parse(example.data, GetMessageClass(method.input_type)())
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = (channel.unary_stream if method.server_streaming else channel.unary_unary)(f"/{example.verb}")
        data = request.SerializeToString()
        if method.name == "PromotePolicy":  # this server has nobody who could change a policy
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(data)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        elif method.server_streaming:
            assert [answer async for answer in call(data)]
        else:
            await call(data)
