"""Clients of the soak in processes of their own: one that measures, and those that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

PROBE = """
import json, sys, threading, time
from respsd_client import Client, ServiceError

stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
refusals, others = [], []
with Client(sys.argv[1]) as client:
    client.load()  # the connection is there
    while not stopped.wait(0.1):
        began = time.perf_counter()
        client.load()
        others.append(time.perf_counter() - began)
        began = time.perf_counter()
        try:
            with client.stream("the cat", max_new_tokens=1) as stream:
                next(stream, None)
        except ServiceError as error:
            if error.code.name == "RESOURCE_EXHAUSTED":
                refusals.append(time.perf_counter() - began)
print(json.dumps([refusals, others]))
"""

DOOMED = """
import sys, threading
from respsd_client import Client

client = Client(sys.argv[1])

def stream():
    try:
        for _ in client.stream("the cat sat on", max_new_tokens=200, ignore_eos=True):
            print("streaming", flush=True)
    except Exception:  # the queue is full
        print("streaming", flush=True)

for thread in [threading.Thread(target=stream) for _ in range(4)]:
    thread.start()
threading.Event().wait()
"""


class Probe:
    """Asks again and again and notes how long it took to hear that the queue is full, and the cheapest answer there is.

    The latter tells how long this machine lets anybody wait.
    """

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROBE, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def stop(self) -> tuple[list[float], list[float]]:
        """Seconds of each refusal, and of each look at the load."""
        out, _ = self._process.communicate(timeout=60)
        refusals, others = json.loads(out)
        return refusals, others

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Doomed:
    """Four streams in one process."""

    def __init__(self, address: str) -> None:
        self._command = [sys.executable, "-c", DOOMED, address]

    def live(self, seconds: float) -> int:
        """Let it stream for so long, then kill it; 1 where that came to pass."""
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            time.sleep(seconds)
            process.kill()
        return int(bool(said))
