"""What systemd hears of the whole daemon, from its first word to its last."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.daemons import STILL, DaemonProcess, tiny_flags

pytestmark = pytest.mark.slow
WORDS = {"STATUS", "EXTEND_TIMEOUT_USEC", "READY", "RELOADING", "WATCHDOG", "STOPPING"}
LONG = 300.0


@contextmanager
def manager(path: Path) -> Iterator[list[str]]:
    """A service manager's socket, and the first word of each message as it comes."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        ears.bind(str(path))

        def listen() -> None:
            while message := ears.recv(4096):
                heard.append(message.decode().partition("=")[0])

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield heard
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            mouth.sendto(b"", str(path))
        thread.join()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_told_to_stop_while_it_loads_it_ends_at_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with manager(path) as heard:
        told = {**STILL, "NOTIFY_SOCKET": str(path), "RESPSD_CALIBRATION__AT_START": "always"}  # it loads for longer
        served = DaemonProcess(tmp_path / "state", *tiny_flags(), environment=told)
        try:
            until(lambda: "EXTEND_TIMEOUT_USEC" in heard)
            assert served.stop() == 0
            assert "READY" not in heard
        finally:
            if served.process.poll() is None:
                served.process.kill()
            served.wait()


def test_it_hears_of_loading_readiness_life_reload_and_end_in_this_order(tmp_path: Path) -> None:
    """vllm-project/vllm#57637, systemd/systemd#5868, RIDE-Lab/SAGE#1346."""
    path = tmp_path / "notify"
    told = {**STILL, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "100000"}
    with manager(path) as heard:
        served = DaemonProcess(tmp_path / "state", *tiny_flags(), environment=told)
        try:
            until(lambda: "EXTEND_TIMEOUT_USEC" in heard)
            served.process.send_signal(signal.SIGHUP)  # while it loads: it waits, and ends nothing
            served.ready()
            until(lambda: heard.count("READY") == 2)
            reloaded = len(heard)
            until(lambda: heard[reloaded:].count("WATCHDOG") >= 2)  # it goes on saying so
            served.process.send_signal(signal.SIGHUP)
            until(lambda: heard.count("READY") == 3)
            assert served.stop() == 0
        finally:
            if served.process.poll() is None:
                served.process.kill()
            served.wait()
        until(lambda: "STOPPING" in heard and "STATUS" in heard[heard.index("STOPPING") :])
    assert heard[:2] == ["STATUS", "EXTEND_TIMEOUT_USEC"]
    assert heard[: heard.index("READY")].count("STATUS") >= 3  # loading, calibrating, warming up
    steps = [word for word in heard if word in ("READY", "RELOADING", "STOPPING")]
    assert steps == ["READY", "RELOADING", "READY", "RELOADING", "READY", "STOPPING"]
    assert "EXTEND_TIMEOUT_USEC" in heard[heard.index("STOPPING") :]  # for the drain
    assert set(heard) <= WORDS
