"""Mixed traffic of many clients on one daemon for some time, and an account of how every request ended."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.daemons import DaemonProcess
from support.soak_clients import Doomed, Probe

from respsd_client import AsyncClient, GenerateResult, ServiceError

CLIENTS = 64
LONGER_SECONDS = 300.0
"""That a slow machine may take besides."""
SETTINGS = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_EXPLORATION__SHARE": "0.2",
    "RESPSD_LEARNING__ENABLED": "false",
    "RESPSD_ROLLOUT__ENABLED": "false",
    "RESPSD_ENGINE__MAX_RUNNING": "8",
    "RESPSD_ENGINE__MAX_WAITING": "16",
}
"""So few places that many of the clients find the queue full; policies change by hand only."""
PROMPTS = ("the cat sat on", "then the other hat", [1, 40, 17, 99], [{"role": "user", "content": "a cat?"}])
SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "top_p": 0.9, "seed": 42}, {"frequency_penalty": 1.5})
ACTIONS = (None, "off", "4,1,2", "16,4,4", "60,7,10")
BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("INVALID_ARGUMENT", {"prompt": ""}),
    ("INVALID_ARGUMENT", {"prompt": []}),
    ("INVALID_ARGUMENT", {"prompt": [10**6]}),
    ("INVALID_ARGUMENT", {"prompt": "the cat", "max_new_tokens": 0}),
    ("INVALID_ARGUMENT", {"prompt": "the cat", "max_new_tokens": 10**6}),
    ("INVALID_ARGUMENT", {"prompt": "the cat " * 200}),
    ("INVALID_ARGUMENT", {"prompt": "the cat", "temperature": float("nan")}),
    ("INVALID_ARGUMENT", {"prompt": "the cat", "stop": ""}),
    ("INVALID_ARGUMENT", {"prompt": "the cat", "action": "500,8,32"}),
    ("NOT_FOUND", {"prompt": "the cat", "policy": "nobody"}),
)
FULL = "RESOURCE_EXHAUSTED"


@dataclass
class SoakReport:
    """How the requests ended, and what the daemon looked like."""

    seconds: float = 0.0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of request and status."""
    killed_clients: int = 0
    swaps: int = 0
    """Changes of the champion."""
    finished: list[GenerateResult] = field(default_factory=list, repr=False)
    refusal_seconds: list[float] = field(default_factory=list, repr=False)
    """How long the probe, a process of its own, waited to hear that the queue is full."""
    look_seconds: list[float] = field(default_factory=list, repr=False)
    """How long it waited to hear the load, the cheapest answer."""
    memory: list[tuple[float, int]] = field(default_factory=list, repr=False)
    """Seconds since the start, and the daemon's resident KiB."""
    seconds_to_idle: float = 0.0
    exit_code: int = -1
    faults: list[str] = field(default_factory=list)

    def memory_between(self, start: float, end: float) -> int:
        """Median resident KiB between two moments."""
        return round(statistics.median(kib for at, kib in self.memory if start <= at <= end))


def milliseconds(seconds: list[float], share: float) -> float:
    """A quantile."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


class Soak:
    """Runs it; everything random follows the seed but the moments at which threads and processes run."""

    def __init__(self, daemon: DaemonProcess, socket: Path, seed: int) -> None:
        """:param socket: the daemon's UNIX socket, over which policies are changed"""
        self._daemon = daemon
        self._socket = socket
        self._address = daemon.address
        self._seed = seed
        self._report = SoakReport()
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._until = 0.0
        self._enough: Callable[[SoakReport], bool] = lambda _report: True

    async def run(self, seconds: float, enough: Callable[[SoakReport], bool]) -> SoakReport:
        """Load the daemon for so long, and on a slow machine until there is enough; then wait until it is idle."""
        began = time.monotonic()
        self._until, self._enough = began + seconds, enough
        with Probe(self._address) as probe:
            async with asyncio.TaskGroup() as tasks:
                for number in range(CLIENTS):
                    tasks.create_task(self._client(number))
                tasks.create_task(self._doomed())
                tasks.create_task(self._swaps())
                tasks.create_task(self._watch(began))
            self._report.refusal_seconds, self._report.look_seconds = probe.stop()
        self._report.seconds = round(time.monotonic() - began, 1)
        await self._idle()
        self._report.exit_code = self._daemon.stop()
        self._report.faults += [
            line for line in self._daemon.lines if '"level": "error"' in line or "Traceback" in line
        ]
        return self._report

    def _goes_on(self) -> bool:
        late = time.monotonic() - self._until
        return late < 0 or (late < LONGER_SECONDS and not self._enough(self._report))

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        kinds: list[Callable[[AsyncClient, random.Random], Awaitable[str]]] = [
            self._stream, self._stream, self._unary, self._cancel, self._cancel_unary, self._deadline, self._bad,
        ]  # fmt: skip
        async with AsyncClient(self._address) as client:
            while self._goes_on():
                kind = rng.choice(kinds)
                end = await kind(client, rng)
                self._report.ends[kind.__name__.strip("_"), end] += 1
                # Who is refused waits, but not for as long as it is told: the queue is to be full.
                await asyncio.sleep(rng.uniform(0.1, 0.5) if end == FULL else rng.uniform(0, 0.02))

    async def _stream(self, client: AsyncClient, rng: random.Random) -> str:
        name, prompt, options = _request(rng)
        try:
            stream = client.stream(prompt, **options)
            token_ids = [token async for chunk in stream for token in chunk.token_ids]
        except ServiceError as error:
            return self._expected(error, FULL)
        if list(stream.result.token_ids) != token_ids:
            self._report.faults.append(f"{stream.request_id}: the chunks are not the result")
        return self._finished(name, stream.result)

    async def _unary(self, client: AsyncClient, rng: random.Random) -> str:
        name, prompt, options = _request(rng)
        try:
            return self._finished(name, await client.generate(prompt, **options))
        except ServiceError as error:
            return self._expected(error, FULL)

    async def _cancel(self, client: AsyncClient, rng: random.Random) -> str:
        """At a random moment: queued, in the prompt, between chunks, or when it is over."""
        name, prompt, options = _request(rng)
        stream = client.stream(prompt, **options)
        alarm = asyncio.get_running_loop().call_later(rng.uniform(0, 0.5), stream.cancel)
        try:
            async for _ in stream:
                pass
            return self._finished(name, stream.result)
        except ServiceError as error:
            return self._expected(error, FULL, "CANCELLED")
        finally:
            alarm.cancel()

    async def _cancel_unary(self, client: AsyncClient, rng: random.Random) -> str:
        name, prompt, options = _request(rng)
        try:
            async with asyncio.timeout(rng.uniform(0.001, 0.3)):
                return self._finished(name, await client.generate(prompt, **options))
        except TimeoutError:
            return "CANCELLED"
        except ServiceError as error:
            return self._expected(error, FULL)

    async def _deadline(self, client: AsyncClient, rng: random.Random) -> str:
        name, prompt, options = _request(rng)
        try:
            return self._finished(name, await client.generate(prompt, timeout=rng.uniform(0.005, 0.5), **options))
        except ServiceError as error:
            return self._expected(error, FULL, "DEADLINE_EXCEEDED")

    async def _bad(self, client: AsyncClient, rng: random.Random) -> str:
        code, options = rng.choice(BAD)
        try:
            await client.generate(**options)
        except ServiceError as error:
            return self._expected(error, code, FULL)
        self._report.faults.append(f"{options} was taken")
        return "OK"

    async def _doomed(self) -> None:
        """Client processes that are killed while their streams run."""
        rng = random.Random(self._seed)
        while self._goes_on():
            self._report.killed_clients += await asyncio.to_thread(Doomed(self._address).live, rng.uniform(0, 0.5))
            await asyncio.sleep(0.5)

    async def _swaps(self) -> None:
        """The champion moves to and fro while it serves."""
        async with AsyncClient(f"unix:{self._socket}") as client:
            while self._goes_on():
                for version in (2, 1):
                    await client.promote_policy(version, reason="soak")
                    self._report.swaps += 1
                    await asyncio.sleep(1.0)

    async def _watch(self, began: float) -> None:
        status = Path(f"/proc/{self._daemon.process.pid}/status")
        asked = health_pb2.HealthCheckRequest()
        channel = grpc.aio.insecure_channel(self._address)
        while self._goes_on():
            health = await health_pb2_grpc.HealthStub(channel).Check(asked)
            if health.status != health_pb2.HealthCheckResponse.SERVING:  # busy is not wedged
                self._report.faults.append(f"health {health.status} after {time.monotonic() - began:.0f} s")
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            self._report.memory.append((time.monotonic() - began, int(fields["VmRSS"].split()[0])))
            await asyncio.sleep(min(1.0, max(0.1, self._until - time.monotonic())))
        await channel.close()

    async def _idle(self) -> None:
        """No sequence and no token of KV cache may stay behind."""
        began = time.monotonic()
        async with AsyncClient(self._address) as client:
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while True:
                        load = await client.load()
                        if load.running == load.waiting == load.kv_tokens_reserved == 0:
                            self._report.seconds_to_idle = round(time.monotonic() - began, 2)
                            return
                        await asyncio.sleep(0.02)
            self._report.faults.append(f"not idle after 30 s: {load}")

    def _finished(self, name: str, result: GenerateResult) -> str:
        """The same request gives the same tokens, whatever the draft trees and the other requests."""
        self._report.finished.append(result)
        known = self._outputs.setdefault(name, result.token_ids)
        short, long = sorted((known, result.token_ids), key=len)
        if long[: len(short)] != short:
            self._report.faults.append(f"{name}: {result.token_ids} and before {known}")
        self._outputs[name] = long
        return "OK"

    def _expected(self, error: ServiceError, *codes: str) -> str:
        if error.code.name not in codes:
            self._report.faults.append(f"{error}, and not {' or '.join(codes)}")
        return error.code.name


def _request(rng: random.Random) -> tuple[str, Any, dict[str, Any]]:
    """A name of what decides the tokens, the prompt, and the options."""
    prompt, sampling = rng.choice(PROMPTS), rng.choice(SAMPLINGS)
    # Most outputs are short, some go on for as long as the context allows.
    budget = min(220, 1 + round(rng.expovariate(1 / 40)))
    options = {"max_new_tokens": budget, "ignore_eos": True, "action": rng.choice(ACTIONS), **sampling}
    return f"{prompt} {sampling}", prompt, options


def missing_rows(log: Path, finished: list[GenerateResult]) -> list[str]:
    """Finished requests that are not in the log with all their windows, and logged ones that lack some."""
    with closing(sqlite3.connect(log)) as connection:
        rows = connection.execute(
            "SELECT r.request_id, r.steps, r.completion_tokens, coalesce(sum(t.steps), 0), "
            "coalesce(sum(t.committed_tokens), 0), count(t.id), coalesce(max(t.window) + 1, 0) "
            "FROM requests r LEFT JOIN transitions t ON t.request_row = r.id GROUP BY r.id"
        ).fetchall()
    found = {row[0]: row[1:] for row in rows}
    wrong = [
        name for name, (steps, _, summed, _, count, windows) in found.items() if (steps, count) != (summed, windows)
    ]
    for result in finished:
        row = found.get(result.request_id)
        # The first token comes from the prompt's own forward pass, all others from the windows' steps.
        if row is None or (row[0], row[1], row[3]) != (
            result.steps, result.completion_tokens, result.completion_tokens - 1,
        ):  # fmt: skip
            wrong.append(f"{result.request_id}: {row}")
    return wrong
