from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from respsd.telemetry.sdnotify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def heard(manager: socket.socket, count: int) -> list[str]:
    return [manager.recv(4096).decode() for _ in range(count)]


def test_the_words_arrive_in_order(manager: socket.socket) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.status("loading\nthe model")
    notifier.extend_timeout(90.5)
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    assert heard(manager, 5) == [
        "STATUS=loading the model",
        "EXTEND_TIMEOUT_USEC=90500000",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


class Asking(Notifier):
    """Notes what it is to ask for."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[float] = []
        self.often = threading.Event()

    def extend_timeout(self, seconds: float) -> None:
        self.asked.append(seconds)
        if len(self.asked) == 4:
            self.often.set()


def test_time_is_asked_for_again_until_the_start_is_over() -> None:
    """systemd/systemd#5868: a long load is no hang, however long it takes."""
    notifier = Asking()
    with notifier.asking_for_time(90.5, every_seconds=0.001):
        assert notifier.asked  # at once
        assert notifier.often.wait(60)
    assert set(notifier.asked) == {90.5}
    assert "ask-for-time" not in {thread.name for thread in threading.enumerate()}


def test_an_abstract_socket_is_written_with_an_at_sign() -> None:
    name = f"respsd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(5)
        Notifier(f"@{name}").ready()
        assert heard(manager, 1) == ["READY=1"]


def test_without_a_manager_nothing_is_said() -> None:
    notifier = Notifier.from_environment({})
    notifier.ready()
    assert notifier.watchdog_seconds is None


def test_a_manager_that_is_gone_is_survived(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "nobody")).ready()


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdogs_interval_is_read(environment: dict[str, str], seconds: float | None) -> None:
    assert Notifier.from_environment(environment).watchdog_seconds == seconds


def test_a_reload_names_the_moment_by_systemds_clock(manager: socket.socket) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    Notifier(manager.getsockname()).reloading()
    (message,) = heard(manager, 1)
    first, second = message.splitlines()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
