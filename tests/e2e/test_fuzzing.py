"""Random and malformed messages to every method of the whole daemon: no crash, no hang, no UNKNOWN, no INTERNAL.

`RESPSD_TEST_FUZZ_CALLS=100000 pytest -s tests/e2e/test_fuzzing.py` makes a hundred thousand calls.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

import grpc
import grpc.aio
import grpc_health
import grpc_reflection
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.daemons import STILL, DaemonProcess, daemon, tiny_flags
from support.fuzzing import Fuzzer

import respsd.service
import respsd_client
from respsd_client import Client

CALLS = int(os.environ.get("RESPSD_TEST_FUZZ_CALLS", "4000"))
SEED = int(os.environ.get("RESPSD_TEST_FUZZ_SEED", "0"))
"""The same seed sends the same messages; a fault names its seed and its number."""
SOCKET_SHARE = 5
"""One call in so many goes over the UNIX socket, whose user may change policies."""
ENDLESS = {"Watch"}
"""The health service's stream never ends by itself."""
COSTLY = {"TrainNow"}
"""Starts a process, where it is allowed."""
OPTIONS = [("grpc.max_receive_message_length", -1)]
QUICK = {**STILL, "RESPSD_LIMITS__DEFAULT_MAX_NEW_TOKENS": "4", "RESPSD_LEARNING__ENABLED": "false"}


def served_methods(address: str) -> list[MethodDescriptor]:
    """What the daemon itself says that it serves; messages of all of it must be known here."""
    for package in (respsd_client, respsd.service, grpc_health, grpc_reflection):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("_pb2"):
                importlib.import_module(module.name)
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    with grpc.insecure_channel(address) as channel:
        names = sorted(ProtoReflectionDescriptorDatabase(channel).get_services())
    methods = [method for name in names for method in pool.FindServiceByName(name).methods]
    return [method for method in methods if method.name not in ENDLESS]


def tokens(served: DaemonProcess) -> tuple[int, ...]:
    with Client(served.address) as client:
        return client.generate([1, 40, 17, 99], max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=5).token_ids


@pytest.mark.slow
@pytest.mark.timeout(300 + CALLS // 20)
async def test_no_message_brings_the_daemon_down_or_goes_unanswered(tmp_path: Path) -> None:
    with daemon(tmp_path, *tiny_flags(), environment=QUICK) as served:
        methods = served_methods(served.address)
        assert len(methods) > 20
        before = tokens(served)
        async with grpc.aio.insecure_channel(served.address, options=OPTIONS) as channel:
            anyone = await Fuzzer(channel, methods, seed=2 * SEED).run(CALLS - CALLS // SOCKET_SHARE)
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/respsd.sock", options=OPTIONS) as channel:
            cheap = [method for method in methods if method.name not in COSTLY]
            owner = await Fuzzer(channel, cheap, seed=2 * SEED + 1).run(CALLS // SOCKET_SHARE)
        print(anyone.ends + owner.ends)  # noqa: T201
        assert anyone.faults + owner.faults == []
        assert anyone.calls + owner.calls == CALLS
        # Not everything is refused: some of it gets as far as the engine, some of it changes policies.
        assert anyone.ends["Generate", "OK"] > 0
        assert anyone.ends["GenerateStream", "OK"] > 0
        assert owner.ends["FreezeLearning", "OK"] > 0
        assert {end for name, end in anyone.ends if name == "FreezeLearning"} <= {
            "PERMISSION_DENIED",
            "INVALID_ARGUMENT",
        }
        assert tokens(served) == before
        with Client(served.address) as client:
            load = client.load()
        assert (load.running, load.waiting, load.kv_tokens_reserved) == (0, 0, 0)
        assert served.stop() == 0
    assert [line for line in served.lines if "Traceback" in line or '"level": "error"' in line] == []
