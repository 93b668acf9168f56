"""Word to systemd (`Type=notify-reload`): datagrams to the socket that $NOTIFY_SOCKET names; nothing without one.

The protocol is sd_notify(3)'s: lines of NAME=VALUE.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


class Notifier:
    """Tells the service manager what the daemon does; never raises, since its absence must not stop serving."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        """`address` is a socket's path, `@name` for an abstract one, None for nobody to tell."""
        self._address = address
        self.watchdog_seconds = watchdog_seconds
        """How often systemd wants to hear `alive`; None where it does not watch. Say it twice as often."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """Read $NOTIFY_SOCKET and $WATCHDOG_USEC, the latter only where $WATCHDOG_PID names this process."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog = int(microseconds) / 1e6 if mine and microseconds.isdecimal() else None
        return cls(environment.get("NOTIFY_SOCKET") or None, watchdog)

    def status(self, text: str) -> None:
        """One line that `systemctl status` shows."""
        self._send(f"STATUS={' '.join(text.split())}")

    def ready(self) -> None:
        """The daemon serves."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Settings are being read again; `ready` follows, after good ones and bad ones alike."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000  # the clock that systemd compares with
        self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}")

    def stopping(self) -> None:
        """The daemon drains and then ends."""
        self._send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for this much time from now, before systemd takes a long start or stop for a hang."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    @contextmanager
    def asking_for_time(self, seconds: float, every_seconds: float = 60.0) -> Iterator[None]:
        """Ask for `seconds` again and again until the `with` ends.

        How long a start takes depends on what it has to fetch; only one that cannot even ask is to count as a hang.
        """
        self.extend_timeout(seconds)
        over = threading.Event()

        def ask() -> None:
            while not over.wait(every_seconds):
                self.extend_timeout(seconds)

        thread = threading.Thread(target=ask, name="ask-for-time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def alive(self) -> None:
        """The engine moved, or has nothing to do; without this word in time systemd restarts the daemon."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(message.encode(), address)
        except OSError as error:
            log.warning("the service manager cannot be told", message=message, error=str(error))
