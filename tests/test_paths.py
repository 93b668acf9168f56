from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from respsd.paths import cache_dir, state_dir

VARIABLES = ("STATE_DIRECTORY", "CACHE_DIRECTORY", "XDG_STATE_HOME", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_home_is_the_default() -> None:
    assert state_dir() == Path("/home/ada/.local/state/respsd")
    assert cache_dir() == Path("/home/ada/.cache/respsd")


@pytest.mark.parametrize(
    ("folder", "systemd", "xdg"),
    [(state_dir, "STATE_DIRECTORY", "XDG_STATE_HOME"), (cache_dir, "CACHE_DIRECTORY", "XDG_CACHE_HOME")],
)
def test_systemd_wins_over_xdg_and_xdg_over_home(
    monkeypatch: pytest.MonkeyPatch, folder: Callable[[], Path], systemd: str, xdg: str
) -> None:
    monkeypatch.setenv(xdg, "/data/xdg")
    assert folder() == Path("/data/xdg/respsd")
    monkeypatch.setenv(systemd, "/var/lib/respsd:/var/lib/other")
    assert folder() == Path("/var/lib/respsd")


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_a_relative_xdg_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert state_dir() == Path("/home/ada/.local/state/respsd")
