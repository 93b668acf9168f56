from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forbidden import forbid

from respsd.paths import cache_dir, is_file, is_socket, state_dir

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


def test_what_lies_in_a_folder_that_may_not_be_entered_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    assert [is_file(tmp_path / name) for name in ("file", "socket", "none")] == [True, False, False]
    assert [is_socket(tmp_path / name) for name in ("file", "socket", "none")] == [False, True, False]
    forbid(monkeypatch, tmp_path)
    assert not is_file(tmp_path / "file")
    assert not is_socket(tmp_path / "socket")
