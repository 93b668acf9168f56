"""A version as one file to carry elsewhere: a plain tar of its manifest and its safetensors weights.

Reading trusts nothing: members are only ever read into memory and by exact name, so no path in an archive means
anything, and whatever is not exactly a manifest and the weights that it describes is refused.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from policy_store.artifact import MANIFEST, WEIGHTS, sha256
from policy_store.errors import ArchiveRefused, InvalidManifest, InvalidWeights
from policy_store.manifest import Manifest, ManifestDraft
from policy_store.weights import check_weights, decode_weights

MAX_ARCHIVE_BYTES = 64 << 20
"""A policy network of the largest published targets takes a few megabytes."""
MAX_MANIFEST_BYTES = 4 << 20

_MAGIC = {b"PK": "a zip", b"\x80": "a pickle", b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""How files begin that people take for an archive; none of them is ever opened as what it is."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What an archive holds, every part checked against the others."""

    manifest: Manifest
    """As it was in the store that the version was exported from."""
    manifest_sha256: str
    weights: dict[str, npt.NDArray[np.float32]]

    def draft(self) -> ManifestDraft:
        """The version as this store may publish it: without a parent, whose number is another store's."""
        known = {field.name: getattr(self.manifest, field.name) for field in fields(ManifestDraft)}
        origin = {
            "version": self.manifest.version,
            "created": self.manifest.created,
            "parent": self.manifest.parent,
            "manifest_sha256": self.manifest_sha256,
            "origin": self.manifest.origin,
        }
        return ManifestDraft(**(known | {"parent": None, "origin": origin}))


def write_archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of a version's files; the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def read_archive(data: bytes, most_bytes: int = MAX_ARCHIVE_BYTES) -> Archive:
    """Read an archive; raises ArchiveRefused, InvalidManifest or InvalidWeights on any doubt."""
    files = _members(data, most_bytes)
    if MANIFEST not in files:
        raise ArchiveRefused(f"it has no {MANIFEST}")
    text = files[MANIFEST]
    if len(text) > MAX_MANIFEST_BYTES:
        raise ArchiveRefused(f"{MANIFEST} has {len(text)} bytes; at most {MAX_MANIFEST_BYTES} are read")
    manifest = Manifest.from_json(text)
    return Archive(manifest, sha256(text), _weights(manifest, files.get(WEIGHTS)))


def _members(data: bytes, most_bytes: int) -> dict[str, bytes]:
    if len(data) > most_bytes:
        raise ArchiveRefused(f"it has {len(data)} bytes; at most {most_bytes} are read")
    for magic, kind in _MAGIC.items():
        if data.startswith(magic):
            raise ArchiveRefused(f"it is {kind}, not a tar that `respsd policy export` made")
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                _check_member(member, files)
                files[member.name] = _read(tar, member, data)
            end = tar.offset
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as fault:
        raise ArchiveRefused(f"it is not a tar that can be read: {fault}") from fault
    if data[end:].strip(b"\0"):
        raise ArchiveRefused("there is something after its end")
    return files


def _check_member(member: tarfile.TarInfo, seen: Mapping[str, bytes]) -> None:
    name = member.name
    if name not in (MANIFEST, WEIGHTS):
        raise ArchiveRefused(f"it holds {name[:100]!r}; only {MANIFEST} and {WEIGHTS} may be in it")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise ArchiveRefused(f"{name} is a link, a sparse or a special file, not a plain one")
    if name in seen:
        raise ArchiveRefused(f"it holds {name} twice")


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> bytes:
    if not 0 <= member.size <= len(data):
        raise ArchiveRefused(f"{member.name} claims {member.size} bytes, the whole archive has {len(data)}")
    file = tar.extractfile(member)
    content = b"" if file is None else file.read()
    if len(content) != member.size:
        raise ArchiveRefused(f"{member.name} is cut off: {len(content)} of {member.size} bytes")
    return content


def _weights(manifest: Manifest, data: bytes | None) -> dict[str, npt.NDArray[np.float32]]:
    if manifest.kind == "static":
        if data is not None or manifest.weights_sha256 is not None:
            raise InvalidManifest("kind", "is static, which has no weights, and there are weights")
        return {}
    if data is None or manifest.weights_sha256 is None:
        raise InvalidWeights("file", "is missing, or the manifest gives no hash for it")
    if sha256(data) != manifest.weights_sha256:
        raise InvalidWeights("file", "does not have the hash that the manifest gives")
    weights = decode_weights(data)
    check_weights(manifest, weights)
    return weights
