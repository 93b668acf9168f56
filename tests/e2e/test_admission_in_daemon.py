"""Admission in a real daemon: its settings hold, its load tells of them, and its metrics count who was turned away."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from support.daemons import STILL, daemon, long_flags, respsd

from respsd.service.oip import open_inference_pb2 as oip
from respsd.service.oip import open_inference_pb2_grpc as oip_grpc
from respsd_client import Client, ServiceError

ENVIRONMENT = {
    **STILL,
    "RESPSD_ENGINE__MAX_RUNNING": "1",
    "RESPSD_ENGINE__MAX_WAITING": "2",
    "RESPSD_ENGINE__KV_TOKENS": "100000",
    "RESPSD_ADMISSION__MAX_WAITING_TOKENS": "120000",
    "RESPSD_ADMISSION__MAX_CLIENT_REQUESTS": "3",
}


def free_address() -> str:
    """An address of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_shares_limits_metrics_and_the_open_inference_protocol_work_together(tmp_path: Path):
    metrics = free_address()
    with (
        daemon(tmp_path, *long_flags(), "--metrics", metrics, environment=ENVIRONMENT) as served,
        Client(served.address) as client,
    ):
        load = client.load()
        assert (load.max_running, load.max_waiting, load.max_waiting_tokens, load.max_client_requests) == (
            1,
            2,
            120_000,
            3,
        )
        held = [client.stream([1, 40, 17], max_new_tokens=50_000, ignore_eos=True)]
        in_time(lambda: client.load().running == 1)  # or the queue is full before it has left it
        held += [client.stream([1, 40, 17], max_new_tokens=50_000, ignore_eos=True) for _ in range(2)]
        in_time(lambda: client.load().in_flight == 3)
        with pytest.raises(ServiceError, match=r"3 of 3, set by admission\.max_client_requests") as caught:
            client.generate("x")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in held:
            stream.cancel()
        in_time(lambda: client.load().in_flight == 0)

        expected = client.generate("cat", max_new_tokens=12, seed=3, temperature=0.9).text
        with grpc.insecure_channel(served.address) as channel:
            message = oip.ModelInferRequest(model_name=load_name(served.address))
            tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(b"cat")
            for name, value in (("max_tokens", "12"), ("seed", "3"), ("temperature", "0.9")):
                message.parameters[name].string_param = value
            answer = oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message)
        assert answer.outputs[0].contents.bytes_contents[0].decode() == expected

        with urllib.request.urlopen(f"http://{metrics}/metrics") as page:
            counted = page.read().decode()
        assert 'respsd_requests_refused_total{reason="client_requests"} 1.0' in counted
        assert 'respsd_policy_info{arm="champion",state="good",version="1"} 1.0' in counted
        assert 'respsd_train_updates_total{reason="none",status="stored"} 0.0' in counted
        assert served.stop() == 0


def in_time(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail where it does not within a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def load_name(address: str) -> str:
    """The served model's name, as the status command tells it."""
    return str(json.loads(respsd("status", "--address", address, "-o", "json"))["target"])
