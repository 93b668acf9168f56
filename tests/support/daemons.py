"""The real daemon in a process of its own, started as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support import models

STILL = {
    "RESPSD_CALIBRATION__AT_START": "never",
    "RESPSD_EXPLORATION__SHARE": "0",
    "RESPSD_ROLLOUT__ENABLED": "false",
}
"""Settings under which a daemon starts at once and the champion serves every request that names no policy."""
_RESPSD = (sys.executable, "-m", "respsd")


class DaemonProcess:
    """A running `respsd serve`; its log lines are collected as they come."""

    def __init__(self, state_dir: Path, *flags: str, environment: Mapping[str, str] = STILL) -> None:
        command = [*_RESPSD, "serve", "--listen", "127.0.0.1:0", "--state-dir", str(state_dir), *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**_env(), **environment}
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self, seconds: float = 300.0) -> dict[str, object]:
        """The `ready` line; fails with the log where there is none."""
        if not self._ready.wait(seconds) or not self._documents("ready"):
            raise AssertionError("the daemon is not ready:\n" + "\n".join(self.lines[-30:]))
        return self._documents("ready")[0]

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self.ready()["address"])

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code; all lines are in then."""
        code = self.process.wait(timeout=120)
        self._reader.join(timeout=60)
        return code

    def _documents(self, event: str) -> list[dict[str, object]]:
        documents = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [document for document in documents if document.get("event") == event]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if '"event": "ready"' in line:
                self._ready.set()
        self._ready.set()


@contextmanager
def daemon(state_dir: Path, *flags: str, environment: Mapping[str, str] = STILL) -> Iterator[DaemonProcess]:
    """A daemon that is ready; killed at the end where it still runs."""
    started = DaemonProcess(state_dir, *flags, environment=environment)
    try:
        started.ready()
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.wait()
        assert started.process.stdout is not None
        started.process.stdout.close()


def tiny_flags() -> tuple[str, ...]:
    """Serve the tiny pair in float32."""
    target, drafter = models.folders()
    return ("--target", str(target), "--drafter", str(drafter), "--dtype", "float32")


def long_flags() -> tuple[str, ...]:
    """The same with `models.LONG_CONTEXT` tokens of context."""
    return ("--target", str(models.long_target()), *tiny_flags()[2:])


def respsd(*arguments: str, code: int = 0) -> str:
    """Run another command as a user does; returns its standard output."""
    result = subprocess.run(
        [*_RESPSD, *arguments], capture_output=True, text=True, timeout=300, env=_env(), check=False
    )
    assert result.returncode == code, result.stderr
    return result.stdout


def _env() -> dict[str, str]:
    """The environment without this machine's own respsd settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RESPSD_")}
