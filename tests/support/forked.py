"""Runs of the command line that start in a moment: forked from a process that has imported everything already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SERVING = "respsd.cli.serve, respsd.daemon"
TRAINING = "respsd.cli.drafter, respsd.drafter_training.train_command"
_FORGE = """
import importlib, json, os, signal, sys, time
import respsd.cli.main
for module in sys.argv[1].split(", "):
    importlib.import_module(module)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)


def run(order):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(opened, stream)
    for name in [name for name in os.environ if name.startswith("RESPSD_")]:
        del os.environ[name]
    os.environ.update(order["environment"])
    if order["cpu_seconds"] is not None:
        signal.setitimer(signal.ITIMER_PROF, order["cpu_seconds"])  # its signal ends a process at once
    sys.argv = ["respsd", *order["arguments"]]
    code = 0
    try:
        respsd.cli.main.main()
    except SystemExit as end:
        code = end.code or 0
    ended = {"event": "exited", "code": code, "cpu_seconds": time.process_time()}
    os.write(log, (json.dumps(ended) + "\\n").encode())


made = []
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            run(json.loads(line))
        finally:
            os._exit(0)
    made.append(pid)
    print(pid, flush=True)
for pid in made:  # whoever asked for them is gone
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
os._exit(0)
"""


@dataclass
class ForkedProcess:
    """One run."""

    pid: int
    log: Path

    def ready(self, seconds: float = 300.0) -> str:
        """The address of a daemon, once it takes requests."""
        deadline = time.monotonic() + seconds
        while not (found := self.said("ready")):
            if not self.is_alive or time.monotonic() > deadline:
                raise AssertionError("the daemon is not ready:\n" + self.log.read_text()[-3000:])
            time.sleep(0.02)
        return str(found[0]["address"])

    def said(self, event: str) -> list[dict[str, object]]:
        """Its log's documents of that event."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        documents = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
        return [each for each in documents if each["event"] == event]

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        return Path("/proc", str(self.pid)).exists()

    def children(self) -> list[int]:
        """Its processes."""
        with suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def kill(self) -> None:
        """End it as `kill -9` does, and return when it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> dict[str, object] | None:
        """Its exit code and CPU seconds once it is gone; None where it was killed."""
        while self.is_alive:
            time.sleep(0.005)
        return next(iter(self.said("exited")), None)


class Forge:
    """Makes them; a context manager, whose end ends them all."""

    def __init__(self, logs: Path, modules: str) -> None:
        """:param modules: SERVING or TRAINING, imported before anything is forked"""
        self._logs = logs
        self._made: list[ForkedProcess] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORGE, modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Forge:
        assert self._answer() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            made.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, cpu_seconds: float | None = None
    ) -> ForkedProcess:
        """`respsd` with these arguments.

        :param cpu_seconds: ends it, as abruptly as `kill -9` does, once it has computed so long: a moment that does not
            depend on what else the machine does
        """
        log = self._logs / f"run-{len(self._made)}.log"
        order = {
            "log": str(log),
            "arguments": list(arguments),
            "environment": dict(environment or {}),
            "cpu_seconds": cpu_seconds,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._made.append(ForkedProcess(int(self._answer()), log))
        return self._made[-1]

    def serve(self, state_dir: Path, flags: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """`respsd serve` on a free port."""
        return self.run(["serve", "--listen", "127.0.0.1:0", "--state-dir", str(state_dir), *flags], environment)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
