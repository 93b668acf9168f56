"""The client for ordinary programs against the real service."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.serving import ServerThread

from respsd.engine.stub import StubEngine, spell
from respsd_client import Client, ServiceError

README = Path(__file__).resolve().parents[2] / "clients" / "python" / "README.md"


@pytest.fixture
def engine() -> StubEngine:
    return StubEngine(context_length=10**7)


@pytest.fixture
def client(engine: StubEngine) -> Iterator[Client]:
    with ServerThread(engine) as server, Client(server.address) as client:
        yield client


def test_generate_stream_and_the_rest(client):
    whole = client.generate("hi", max_new_tokens=20, request_id="r")
    stream = client.stream("hi", max_new_tokens=20, request_id="r")
    assert "".join(chunk.text for chunk in stream) == whole.text
    assert stream.result == whole
    assert stream.request_id == "r"
    assert list(stream) == []
    assert client.tokenize("ab", with_pieces=True).pieces == ("a", "b")
    assert client.model_info().target == "stub"
    assert client.list_policies()[0].aliases == ("baseline", "champion")


def test_result_waits_for_the_end(client):
    stream = client.stream("hi", max_new_tokens=10**6)
    next(stream)
    with pytest.raises(RuntimeError, match="to its end"):
        _ = stream.result
    stream.cancel()
    with pytest.raises(ServiceError) as caught:
        list(stream)
    assert caught.value.code is grpc.StatusCode.CANCELLED


def test_leaving_the_stream_cancels_the_rest(client, engine):
    with client.stream("hi", max_new_tokens=10**6) as stream:
        next(stream)
    while engine.load().running:
        time.sleep(0.001)


def test_cancel_after_the_end_changes_nothing(client):
    with client.stream("hi", max_new_tokens=3) as stream:
        list(stream)
    stream.cancel()
    assert stream.result.completion_tokens == 3


def test_timeout_is_in_seconds(client):
    with pytest.raises(ServiceError) as caught:
        client.generate("hi", max_new_tokens=10**6, timeout=0.05)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_refusal_has_code_field_and_id(client):
    with pytest.raises(ServiceError) as caught:
        client.generate("hi", top_p=2.0, request_id="mine")
    error = caught.value
    assert (error.code, error.request_id) == (grpc.StatusCode.INVALID_ARGUMENT, "mine")
    assert error.field_violations[0].field == "sampling.top_p"
    assert "2.0" in error.field_violations[0].description
    assert error.retry_after_seconds is None


def test_every_option_reaches_the_engine():
    engine = StubEngine(next_token=spell("one stop two"))
    seen = []
    submit = engine.submit
    engine.submit = lambda request, deliver: (seen.append(request), submit(request, deliver))[1]  # type: ignore[method-assign]
    with ServerThread(engine) as server, Client(server.address) as client:
        result = client.generate(
            [5, 6],
            max_new_tokens=100,
            min_new_tokens=2,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            repetition_penalty=1.1,
            frequency_penalty=0.2,
            presence_penalty=-0.3,
            logit_bias={7: -1.5},
            seed=11,
            stop=["stop", "never"],
            stop_token_ids=[0],
            ignore_eos=True,
            include_stop=True,
            action=(8, 2, 4),
            learning_opt_out=True,
            skip_special_tokens=False,
            request_id="all",
        )
    assert result.text == "one stop"
    (request,) = seen
    sampling, stopping = request.sampling, request.stopping
    assert request.prompt_ids == (5, 6)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    assert penalties == (1.1, 0.2, -0.3)
    assert (dict(sampling.logit_bias), sampling.seed) == ({7: -1.5}, 11)
    assert (stopping.max_new_tokens, stopping.min_new_tokens) == (100, 2)
    assert (stopping.stop_strings, stopping.stop_token_ids) == (("stop", "never"), (0,))
    assert stopping.ignore_eos
    assert stopping.include_stop
    assert str(request.speculation.action) == "8,2,4"
    assert request.learning_opt_out
    assert not request.skip_special_tokens
    assert request.request_id == "all"


def test_socket_files_work(tmp_path: Path):
    address = f"unix:{tmp_path}/d.sock"
    with ServerThread(StubEngine(), address), Client(address) as client:
        assert client.generate("hi", max_new_tokens=2).completion_tokens == 2


def test_absent_daemon_is_unavailable(tmp_path: Path):
    with Client(f"unix:{tmp_path}/nobody.sock") as client, pytest.raises(ServiceError) as caught:
        client.model_info()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert caught.value.request_id is None


def test_the_readme_names_all_that_a_client_takes_and_does():
    text = README.read_text()
    calls = {name for name in dir(Client) if not name.startswith("_") and name != "close"}
    keywords = {name for name in inspect.signature(Client).parameters if name != "address"}
    assert "load" in calls
    assert "tls" in keywords
    assert [name for name in sorted(calls) if f"`{name}`" not in text] == []
    assert [name for name in sorted(keywords) if f"{name}=" not in text] == []


def test_it_imports_nothing_but_grpc_and_protobuf():
    program = """
import sys
import google.protobuf, grpc, grpc.aio
before = {name.partition(".")[0] for name in sys.modules}
import respsd_client
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["respsd_client"]
