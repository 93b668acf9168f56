"""`respsd serve` as a child process, for as long as a block lasts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from respsd.errors import EngineUnavailable
from respsd.paths import socket_path

LOG = "daemon.log"
"""In the state folder: everything that the daemon says."""
_START_SECONDS = 900.0
_STOP_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_LINES_SHOWN = 5


@contextmanager
def live_daemon(flags: Sequence[str], state_dir: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A daemon that is ready; the address of its UNIX socket, over which policies may be changed.

    :param environment: settings that hold where neither the flags nor this process's environment say otherwise

    Raises EngineUnavailable with the last lines of its log where it does not become ready.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "respsd", "serve", "--listen", "127.0.0.1:0", "--state-dir", str(state_dir)]
    with (state_dir / LOG).open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen([*command, *flags], stdout=log, stderr=log, env={**environment, **os.environ})
    try:
        _wait(process, state_dir / LOG, begin)
        yield f"unix:{socket_path(state_dir)}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, begin: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
        if any(_is_ready(line) for line in lines):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise EngineUnavailable("the daemon is not ready: " + " | ".join(lines[-_LINES_SHOWN:]))
        time.sleep(_LOOK_SECONDS)


def _is_ready(line: str) -> bool:
    try:
        document = json.loads(line)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("event") == "ready"
