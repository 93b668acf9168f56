"""systemd hears of progress, and of nothing else; and a line on how the daemon does."""

from __future__ import annotations

import asyncio

import pytest

from respsd.engine.api import EngineLoad
from respsd.telemetry.sdnotify import Notifier
from respsd.telemetry.service_manager import StatusLine, say_alive, say_status
from respsd.telemetry.totals import ArmTotals, Totals

SECOND = 1_000_000_000


class Ears(Notifier):
    """Keeps what systemd would hear."""

    def __init__(self, watchdog_seconds: float | None = None) -> None:
        super().__init__(None, watchdog_seconds)
        self.heard: list[str] = []

    def _send(self, message: str) -> None:
        self.heard.append(message)


class HeldClock:
    def __init__(self) -> None:
        self.now = 100 * SECOND

    def monotonic_ns(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now


async def heard_while(notifier: Ears, age: float, asked: int) -> list[str]:
    """What is heard until the age of the last progress was asked for that often."""
    times = 0
    enough = asyncio.Event()

    def seconds_since_progress() -> float:
        nonlocal times
        times += 1
        if times >= asked:
            enough.set()
        return age

    task = asyncio.create_task(say_alive(notifier, seconds_since_progress))
    await enough.wait()
    await asyncio.sleep(0)
    task.cancel()
    return notifier.heard


async def test_an_engine_that_moves_pets_the_watchdog() -> None:
    assert await heard_while(Ears(0.02), 0.0, 3) == ["WATCHDOG=1"] * 3


async def test_a_wedged_or_dead_engine_is_silent() -> None:
    assert await heard_while(Ears(0.02), 0.021, 3) == []
    assert await heard_while(Ears(0.02), float("inf"), 3) == []


async def test_without_a_watchdog_nobody_is_asked() -> None:
    notifier = Ears(None)
    await say_alive(notifier, lambda: 1 / 0)
    assert notifier.heard == []


async def test_the_status_is_said_at_once() -> None:
    notifier = Ears()
    task = asyncio.create_task(say_status(notifier, lambda: "fine"))
    await asyncio.sleep(0)
    task.cancel()
    assert notifier.heard == ["STATUS=fine"]


async def test_the_status_is_said_until_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("respsd.telemetry.service_manager.STATUS_SECONDS", 0.0)
    notifier, lines = Ears(), iter(["fine", "still fine", None, "late"])
    await say_status(notifier, lambda: next(lines))
    assert notifier.heard == ["STATUS=fine", "STATUS=still fine"]


def test_the_line_has_the_speed_since_the_last_one() -> None:
    clock = HeldClock()
    line = StatusLine("serving m at a", clock)
    idle, busy = EngineLoad(0, 0, 0, 1, 0.0), EngineLoad(2, 1, 0, 1, 0.0)
    before = Totals({"champion": ArmTotals(100, 1.0)})
    assert line.describe(idle, before, {"champion": None}) == (
        "serving m at a: 0 running, 0 waiting, 0 tokens/s by a built-in policy"
    )
    clock.now += 10 * SECOND
    after = Totals({"champion": ArmTotals(400, 1.0), "learner": ArmTotals(200, 1.0)})
    assert line.describe(busy, after, {"champion": 3}) == (
        "serving m at a: 2 running, 1 waiting, 50 tokens/s by policy 3"
    )
