"""Kills a writer at each of its operations on files and on SQLite, in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

KILLED = 77
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
"""Of the interpreter's own audit events, those that come before a change of the file system."""


class Killer:
    """Counts operations and ends the process, without any handler or clean-up, right before the one with a number."""

    def __init__(self, folder: Path, at: int, *, torn: bool) -> None:
        """:param torn: a file that is about to be synced loses its second half, as a power cut may have it"""
        self._folder = str(folder)
        self._at = at
        self._torn = torn
        self.count = 0

    def arm(self) -> None:
        """From here on every operation counts; there is no way back in this process."""
        sys.addaudithook(self._audit)
        sync = os.fsync

        def count_sync(descriptor: int) -> None:
            self.step(descriptor)
            sync(descriptor)

        os.fsync = count_sync
        for name in ("before_cursor_execute", "begin", "commit"):
            event.listen(Engine, name, lambda *_: self.step())

    def step(self, descriptor: int | None = None) -> None:
        """One operation is about to be done."""
        self.count += 1
        if self.count == self._at:
            if descriptor is not None and self._torn:
                self._tear(descriptor)
            os._exit(KILLED)

    def _audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in _CHANGES or (name == "open" and self._writes(*arguments)):
            self.step()

    def _writes(self, path: object, _mode: object, flags: object) -> bool:
        writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        return bool(writing) and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._folder)

    def _tear(self, descriptor: int) -> None:
        with suppress(OSError):  # a folder
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)


def killed_everywhere(
    folder: Path, restore: Callable[[], None], work: Callable[[Callable[[], None]], object], *, torn: bool = False
) -> Iterator[int]:
    """Run `work` again and again, each time killed one operation later, until it gets through; yields how often so far.

    `restore` puts the folder back as it was before each run; `work` is given a function that starts the counting.
    """
    for at in range(1, 1000):
        restore()
        child = os.fork()
        if child == 0:
            try:
                work(Killer(folder, at, torn=torn).arm)
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, KILLED), f"operation {at} failed instead of being killed"
        if code == 0:
            return
        yield at
    raise AssertionError("the work does not end")
