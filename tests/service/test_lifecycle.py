"""Phases, in one direction; signals that reload, drain and hurry."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.serving import eventually, served

from respsd.engine.stub import StubEngine
from respsd.service.lifecycle import serve_until_signalled
from respsd.service.phase import Lifecycle, Phase
from respsd_client import AsyncClient, ServiceError


def test_phases_go_one_way_and_are_told_once():
    seen: list[Phase] = []
    lifecycle = Lifecycle(seen.append)
    assert lifecycle.phase is Phase.STARTING
    lifecycle.enter(Phase.READY)
    lifecycle.enter(Phase.READY)
    lifecycle.enter(Phase.STOPPING)
    with pytest.raises(ValueError, match="draining cannot follow stopping"):
        lifecycle.enter(Phase.DRAINING)
    assert seen == [Phase.READY, Phase.STOPPING]


async def test_a_server_goes_through_its_phases():
    seen: list[Phase] = []
    async with served(StubEngine(), lifecycle=Lifecycle(seen.append)):
        assert seen == [Phase.READY]
    assert seen == [Phase.READY, Phase.DRAINING, Phase.STOPPING]


async def test_hang_up_reloads_one_at_a_time_and_serving_goes_on():
    reloads: list[str] = []
    hold = asyncio.Event()

    async def reload() -> None:
        reloads.append("begun")
        await hold.wait()
        reloads.append("done")

    async with served(StubEngine()) as server, AsyncClient(server.address) as client:
        serving = asyncio.create_task(serve_until_signalled(server, 5.0, reload=reload))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: len(reloads) == 1)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await client.generate("x", max_new_tokens=3)).completion_tokens == 3
        assert reloads == ["begun"]
        hold.set()
        await eventually(lambda: len(reloads) == 4)
        assert reloads == ["begun", "done"] * 2
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


async def test_the_grace_is_asked_for_when_draining_begins():
    engine = StubEngine(context_length=10**8)
    grace = [3600.0]
    async with served(engine) as server, AsyncClient(server.address) as client:
        serving = asyncio.create_task(serve_until_signalled(server, lambda: grace[0]))
        await asyncio.sleep(0)
        stream = client.stream("x", max_new_tokens=10**7)
        await anext(stream)
        grace[0] = 0.05
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        with pytest.raises(ServiceError, match="UNAVAILABLE"):
            async for _ in stream:
                pass


TERMINAL = """
import asyncio
from respsd.engine.stub import StubEngine
from respsd.service.lifecycle import serve_until_signalled
from support.serving import make_server

async def reload():
    print("reloaded", flush=True)

async def main():
    engine = StubEngine()
    engine.start()
    server = make_server(engine)
    await server.start()
    await serve_until_signalled(server, 5.0, lambda: print("ready", flush=True), reload)
    engine.stop()

asyncio.run(main())
"""


def test_a_terminal_that_is_gone_ends_the_daemon_and_one_that_stays_does_not():
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    os.close(theirs)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    while next(lines) != "ready\n":
        pass
    process.send_signal(signal.SIGHUP)
    while next(lines) != "reloaded\n":
        pass
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0
