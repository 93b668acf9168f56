"""Who has a store in service: daemons hold a lock together, and work on the files alone needs it for itself.

SQLite keeps the files whole whoever writes; this lock keeps a change from going past a daemon that would not see it.
The system lets go of it when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policy_store.errors import StoreInService, StoreUnavailable

LOCK = "daemon.lock"


@contextmanager
def in_service(store: Path) -> Iterator[None]:
    """Hold the store as a daemon does; waits for offline work, which takes moments, to end."""
    with _opened(store) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


@contextmanager
def out_of_service(store: Path) -> Iterator[None]:
    """Keep daemons from starting on the store; raises StoreInService where one runs."""
    with _opened(store) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise StoreInService(store) from fault
        yield


@contextmanager
def _opened(store: Path) -> Iterator[int]:
    try:
        descriptor = os.open(store / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as fault:
        raise StoreUnavailable(store, f"{LOCK}: {fault.strerror}") from fault
    try:
        yield descriptor
    finally:
        os.close(descriptor)
