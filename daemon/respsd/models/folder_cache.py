"""Model folders that are made once: filled aside, sealed with hashes, renamed into place, checked at every use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from filelock import FileLock, Timeout

log = structlog.get_logger(__name__)

SEAL = "respsd-seal.json"
"""Names the folder's files with size and sha256; written last, so that a folder with a seal is whole."""
REHASHED_BYTES = 16 << 20
"""Files up to this size are hashed at every use, larger ones by size only: weights were hashed when sealed."""


def sha256_of(file: Path) -> str:
    """Hex sha256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seal(folder: Path, origin: str) -> None:
    """Write the folder's seal; `origin` says where its content is from."""
    files = {file.name: {"size": file.stat().st_size, "sha256": sha256_of(file)} for file in sorted(folder.iterdir())}
    (folder / SEAL).write_text(json.dumps({"origin": origin, "files": files}, indent=2) + "\n")


def fault_of(folder: Path, origin: str) -> str | None:
    """Why the folder cannot be used as the sealed content of `origin`; None where it can."""
    try:
        sealed = json.loads((folder / SEAL).read_text())
        if sealed["origin"] != origin:
            return f"it was made from {sealed['origin']}"
        for name, recorded in sealed["files"].items():
            file = folder / name
            if file.stat().st_size != recorded["size"]:
                return f"{name} has {file.stat().st_size} bytes instead of {recorded['size']}"
            if recorded["size"] <= REHASHED_BYTES and sha256_of(file) != recorded["sha256"]:
                return f"{name} was changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its seal cannot be read: {error!r}"
    return None


def make_once(folder: Path, origin: str, fill: Callable[[Path], None]) -> Path:
    """Return the sealed folder, having `fill` make it in an empty one first where it is absent or faulty.

    Of several processes one fills and the others wait for it. What `fill` raises passes through and leaves no trace.
    """
    if fault_of(folder, origin) is None:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        fault = fault_of(folder, origin)
        if fault is None:
            return folder
        if folder.exists():
            log.warning("the cached model is made again", folder=str(folder), fault=fault)
        for leftover in folder.parent.glob(f".{folder.name}.partial-*"):  # of a process that was killed
            shutil.rmtree(leftover)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
        try:
            fill(partial)
            seal(partial, origin)
            _sync(partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock between processes."""
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process prepares this model; waiting for it", folder=str(folder))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sync(folder: Path) -> None:
    """Have the content on disk before the rename is: a power cut must not leave a sealed folder of empty files."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
