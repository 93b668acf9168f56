"""A daemon process over the stub engine: signals drain it, and a client that is killed leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.serving import ServerThread, eventually

from respsd.engine.stub import StubEngine
from respsd_client import Client, GenerationStream, ServiceError

DAEMON = """
import asyncio, threading
from respsd.engine.stub import StubEngine
from respsd.service.lifecycle import serve_until_signalled
from respsd.telemetry.logging import configure_logging
from support.serving import make_server

draining = threading.Event()

def grace():
    draining.set()
    return 3600.0

def hold(request, step):
    if request.prompt_ids == (ord("y"),) and step == 1:
        draining.wait()

async def main():
    configure_logging()
    engine = StubEngine(context_length=10**9, before_step=hold)
    engine.start()
    server = make_server(engine)
    await server.start()
    await serve_until_signalled(server, grace, lambda: print(server.address, flush=True))
    engine.stop()

asyncio.run(main())
"""
"""After the first token of the prompt "y" the engine holds until draining begins, which may take an hour."""

CLIENT = """
import sys
from respsd_client import Client
stream = Client(sys.argv[1]).stream("x", max_new_tokens=10**8)
next(stream)
print("streaming", flush=True)
for _ in stream:
    pass
"""
ENDLESS = {"max_new_tokens": 10**8}


@contextmanager
def daemon() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A daemon process and its address."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_a_short_request_finish_and_a_second_one_cuts_an_endless_one_off(number):
    with daemon() as (process, address), Client(address) as client:
        endless = client.stream("x", **ENDLESS)
        next(endless)
        short = client.stream("y", max_new_tokens=2000)
        next(short)
        process.send_signal(number)
        assert sum(1 for _ in short) > 0
        assert short.result.completion_tokens == 2000
        process.send_signal(number)
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            read_on(endless)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in log


def test_second_signal_ends_the_grace():
    with daemon() as (process, address), Client(address) as client:
        endless = client.stream("x", **ENDLESS)
        next(endless)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            ask_until_refused(client)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            read_on(endless)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_killed_client_frees_its_sequence():
    engine = StubEngine(context_length=10**9)
    with ServerThread(engine) as server:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, server.address], stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        assert client.stdout.readline() == "streaming\n"
        assert engine.load().running == 1
        client.kill()
        client.communicate()
        asyncio.run(eventually(lambda: engine.load().running == 0))


def read_on(stream: GenerationStream) -> None:
    """Read to the end or the error."""
    for _ in stream:
        pass


def ask_until_refused(client: Client) -> None:
    """Return never; the daemon refuses when it has begun to drain."""
    while True:
        client.generate("z", max_new_tokens=1)
