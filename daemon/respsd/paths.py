"""Where respsd keeps its files: systemd's folders first, else the XDG base directories."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

POLICIES = "policies"
"""Folder of the policy store in the state directory."""
CALIBRATIONS = "calibrations"
"""Folder of measured speeds in the state directory."""
TRANSITIONS = "transitions.db"
"""File of the experience log in the state directory."""
REGISTRY = "registry.db"
"""File of the policy store's registry in its folder."""
BACKUPS = "backups"
"""Folder of the databases' backups in the state directory."""
SOCKET = "respsd.sock"
"""File name of the daemon's UNIX socket."""


def state_dir() -> Path:
    """What must outlive a restart.

    `$STATE_DIRECTORY` (systemd), else `$XDG_STATE_HOME/respsd`, else `~/.local/state/respsd`.
    """
    return _folder("STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """What can be made again.

    `$CACHE_DIRECTORY` (systemd), else `$XDG_CACHE_HOME/respsd`, else `~/.cache/respsd`.
    """
    return _folder("CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache")


def socket_path(state: Path) -> Path:
    """The UNIX socket of the daemon that keeps its state there: in `$RUNTIME_DIRECTORY` (systemd), else beside it."""
    granted = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return (Path(granted) if granted else state) / SOCKET


def is_file(path: Path) -> bool:
    """Whether a file is there for this user; one in a folder that they may not enter is not."""
    return _is(stat.S_ISREG, path)


def is_socket(path: Path) -> bool:
    """Whether a UNIX socket is there for this user, in the sense of `is_file`."""
    return _is(stat.S_ISSOCK, path)


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    try:
        return kind(path.stat().st_mode)
    except OSError:  # pathlib's own questions raise PermissionError
        return False


def _folder(systemd_variable: str, xdg_variable: str, below_home: str) -> Path:
    granted = os.environ.get(systemd_variable, "").split(":")[0]  # systemd joins several folders with colons
    if granted:
        return Path(granted)
    base = Path(os.environ.get(xdg_variable, ""))
    if not base.is_absolute():  # the XDG specification has relative values ignored
        base = Path.home() / below_home
    return base / "respsd"
