"""A version's folder: written once, whole or not at all; read with every check."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from policy_store.errors import InvalidManifest, InvalidWeights, VersionCorrupt
from policy_store.manifest import Manifest
from policy_store.weights import check_weights, decode_weights

MANIFEST = "manifest.json"
WEIGHTS = "policy.safetensors"
TEMPORARY_PREFIX = ".tmp-"
ASIDE = ".aside"


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A version as loaded: its manifest and its weights (read-only arrays; none for a static version)."""

    manifest: Manifest
    weights: dict[str, npt.NDArray[np.float32]]


def sha256(data: bytes) -> str:
    """Hash as the manifest and the registry write it."""
    return hashlib.sha256(data).hexdigest()


def write_version(versions: Path, manifest: bytes, version: int, weights: bytes | None) -> None:
    """Write `versions/<version>`: under a temporary name, every file synced, then renamed, then the folder synced."""
    temporary = versions / f"{TEMPORARY_PREFIX}{version}-{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
        _write_synced(temporary / MANIFEST, manifest)
        if weights is not None:
            _write_synced(temporary / WEIGHTS, weights)
        sync_folder(temporary)
        temporary.rename(versions / str(version))
        sync_folder(versions)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_version(versions: Path, version: int) -> tuple[StoredPolicy, str]:
    """Load `versions/<version>` and the hash of its manifest.

    Raises VersionCorrupt on any fault: files, hash, manifest, tensor names, shapes or numbers.
    """
    folder = versions / str(version)
    try:
        text = (folder / MANIFEST).read_bytes()
        manifest = Manifest.from_json(text)
        if manifest.version != version:
            raise VersionCorrupt(version, f"its manifest is that of version {manifest.version}")
        return StoredPolicy(manifest, _read_weights(folder, manifest)), sha256(text)
    except OSError as fault:
        raise VersionCorrupt(version, _unreadable(fault)) from fault
    except (InvalidManifest, InvalidWeights) as fault:
        raise VersionCorrupt(version, str(fault)) from fault


def version_files(versions: Path, version: int) -> dict[str, bytes]:
    """The files of `versions/<version>` as they lie, by name; raises VersionCorrupt where one cannot be read."""
    folder = versions / str(version)
    try:
        return {path.name: path.read_bytes() for path in (folder / MANIFEST, folder / WEIGHTS) if path.exists()}
    except OSError as fault:
        raise VersionCorrupt(version, _unreadable(fault)) from fault


def _unreadable(fault: OSError) -> str:
    """Names the file, not its folder: callers of a daemon may read it."""
    return f"cannot read {Path(fault.filename).name}: {fault.strerror}"


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_weights(folder: Path, manifest: Manifest) -> dict[str, npt.NDArray[np.float32]]:
    if manifest.weights_sha256 is None:
        if manifest.kind != "static":
            raise InvalidManifest("weights_sha256", "is missing")
        return {}
    data = (folder / WEIGHTS).read_bytes()
    if sha256(data) != manifest.weights_sha256:
        raise InvalidWeights("file", "does not have the hash that the manifest gives")
    weights = decode_weights(data)
    check_weights(manifest, weights)
    return weights


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
