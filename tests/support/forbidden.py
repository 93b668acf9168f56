"""Folders that this user may not enter, whoever runs the tests: root may enter all of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the system refuse to say what is in the folder."""
    ask = os.stat

    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int) and folder in Path(os.fsdecode(path)).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return ask(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
