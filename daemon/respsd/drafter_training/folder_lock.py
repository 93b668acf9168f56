"""Folders that one process at a time writes to."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import structlog

from respsd.drafter_training.feature_shards import make_folder
from respsd.errors import TrainingDataError

log = structlog.get_logger(__name__)


@contextmanager
def sole_writer(folder: Path, what: str, *, wait: bool) -> Iterator[None]:
    """Nobody else writes the same thing to the folder meanwhile; it is made where there is none.

    :param what: part of the lock file's name
    :param wait: for whoever does now; otherwise that is a TrainingDataError, as is a folder that cannot be written to

    The lock goes with the process, however that ends.
    """
    make_folder(folder)
    try:
        file = (folder / f".{what}.lock").open("w")
    except OSError as error:
        raise TrainingDataError(str(folder), f"cannot be written to: {error}") from error
    with file:
        _lock(file, folder, wait=wait)
        yield


def _lock(file: IO[str], folder: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            raise TrainingDataError(str(folder), "is being written to by another run") from error
        log.info("waiting_for_another_run", folder=str(folder))
        fcntl.flock(file, fcntl.LOCK_EX)
