"""Versions as files: what goes in comes out, and what is not exactly that is refused before anything is written."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from policy_store import (
    ArchiveRefused,
    InvalidManifest,
    InvalidWeights,
    ManifestDraft,
    PolicyStore,
    StoreError,
    VersionUnknown,
    read_archive,
)
from policy_store.archive import MAX_MANIFEST_BYTES, write_archive
from policy_store.artifact import sha256

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.path,))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[PolicyStore]:
    """A store that has versions of its own already."""
    with PolicyStore(tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def exported(store: PolicyStore, resps_draft: ManifestDraft, weights_for: WeightsFor) -> bytes:
    for _ in range(2):
        store.create(resps_draft, weights_for(resps_draft), actor="trainer")
    store.create(replace(resps_draft, parent=2), weights_for(resps_draft), actor="trainer")
    return store.export(3)


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def tar_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def plain(files: dict[str, bytes], **names: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(tarfile.TarInfo(names.get(name.partition(".")[0], name)), data) for name, data in files.items()]


def with_manifest(archive: bytes, **changes: object) -> bytes:
    files = files_of(archive)
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | changes).encode()
    return write_archive(files)


def test_an_exported_version_gets_a_new_number_and_keeps_its_origin(
    store: PolicyStore, other: PolicyStore, exported: bytes, static_draft: ManifestDraft
) -> None:
    other.create(static_draft, actor="daemon")
    version = other.import_archive(exported, actor="someone", reason="tried on another machine")
    assert version == 2
    policy, original = other.load(version), store.load(3)
    assert policy.manifest.parent is None
    assert policy.manifest.golden == original.manifest.golden
    assert all(np.array_equal(policy.weights[name], tensor) for name, tensor in original.weights.items())
    origin = policy.manifest.origin
    assert origin is not None
    assert (origin["version"], origin["parent"], origin["created"]) == (3, 2, original.manifest.created)
    entry = other.audit()[-1]
    assert (entry.event, entry.to_version, entry.actor, entry.reason) == (
        "import",
        2,
        "someone",
        "tried on another machine",
    )
    assert entry.figures == origin
    assert other.aliases() == {}


def test_an_import_of_an_import_remembers_both_stores(other: PolicyStore, exported: bytes, tmp_path: Path) -> None:
    other.import_archive(exported, actor="someone")
    with PolicyStore(tmp_path / "third") as third:
        third.import_archive(other.export(1), actor="someone")
        origin = third.load(1).manifest.origin
    assert origin is not None
    assert origin["version"] == 1
    assert origin["origin"]["version"] == 3  # type: ignore[index]


def test_a_constant_travels_without_weights(
    store: PolicyStore, other: PolicyStore, static_draft: ManifestDraft
) -> None:
    store.create(static_draft, actor="daemon")
    archive = store.export(1)
    assert files_of(archive).keys() == {"manifest.json"}
    assert other.load(other.import_archive(archive, actor="someone")).manifest.action == (16, 4, 4)


def test_the_same_version_is_exported_to_the_same_bytes(store: PolicyStore, exported: bytes) -> None:
    assert store.export("3") == exported


def test_a_damaged_or_unknown_version_is_not_exported(store: PolicyStore, exported: bytes) -> None:
    (store.path / "versions" / "3" / "policy.safetensors").write_bytes(b"")
    with pytest.raises(StoreError, match="hash"):
        store.export(3)
    with pytest.raises(VersionUnknown):
        store.export(9)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_that_another_program_made_of_the_same_files_is_taken(
    other: PolicyStore, exported: bytes, form: int
) -> None:
    members = plain(files_of(exported))
    for member, _ in members:
        member.mtime, member.uname = 1_800_000_000.25, "ann"  # type: ignore[assignment]  # pax keeps fractions
    assert other.import_archive(tar_of(*members, form=form), actor="someone") == 1


def member(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made, b""


def sparse_bomb() -> bytes:
    """A header that says a terabyte of zeros follows."""
    made = tarfile.TarInfo("policy.safetensors")
    made.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    return tar_of((made, b"0\n" + bytes(510)), form=tarfile.PAX_FORMAT)


def claims_a_terabyte(archive: bytes) -> bytes:
    made = tarfile.TarInfo("manifest.json")
    made.size = 1 << 40
    return made.tobuf(tarfile.GNU_FORMAT) + archive


CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "text": lambda _: b"manifest" * 200,
    "empty tar": lambda _: tar_of(),
    "parent folder": lambda archive: tar_of(*plain(files_of(archive), policy="../policy.safetensors")),
    "absolute path": lambda archive: tar_of(*plain(files_of(archive), policy="/etc/policy.safetensors")),
    "folder": lambda archive: tar_of(member("manifest.json", tarfile.DIRTYPE), *plain(files_of(archive))[1:]),
    "prefixed": lambda archive: tar_of(*plain(files_of(archive), manifest="./manifest.json")),
    "extra": lambda archive: tar_of(*plain(files_of(archive)), (tarfile.TarInfo("setup.py"), b"")),
    "twice": lambda archive: tar_of(*plain(files_of(archive)), *plain(files_of(archive))[:1]),
    "symbolic link": lambda archive: tar_of(
        *plain(files_of(archive))[:1], member("policy.safetensors", tarfile.SYMTYPE, "/etc/passwd")
    ),
    "hard link": lambda archive: tar_of(
        *plain(files_of(archive))[:1], member("policy.safetensors", tarfile.LNKTYPE, "manifest.json")
    ),
    "device": lambda archive: tar_of(*plain(files_of(archive))[:1], member("policy.safetensors", tarfile.CHRTYPE)),
    "fifo": lambda archive: tar_of(*plain(files_of(archive))[:1], member("policy.safetensors", tarfile.FIFOTYPE)),
    "sparse bomb": lambda _: sparse_bomb(),
    "claims a terabyte": claims_a_terabyte,
    "cut off": lambda archive: archive[:1500],
    "something after its end": lambda archive: archive + b"#!/bin/sh\n",
    "gzip": gzip.compress,
    "gzip bomb": lambda _: gzip.compress(bytes(10 << 20)),
    "weights missing": lambda archive: tar_of(*plain(files_of(archive))[:1]),
    "manifest missing": lambda archive: tar_of(*plain(files_of(archive))[1:]),
    "wrong hash": lambda archive: with_manifest(archive, weights_sha256="00" * 32),
    "no hash": lambda archive: with_manifest(archive, weights_sha256=None),
    "unknown field": lambda archive: with_manifest(archive, on_load="os.system"),
    "newer format": lambda archive: with_manifest(archive, format_version=2),
    "manifest bomb": lambda archive: write_archive(
        files_of(archive) | {"manifest.json": b"[" * (MAX_MANIFEST_BYTES - 1)}
    ),
    "manifest too long": lambda archive: write_archive(
        files_of(archive) | {"manifest.json": b" " * (MAX_MANIFEST_BYTES + 1)}
    ),
    "weights of a constant": lambda archive: with_manifest(archive, kind="static"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_what_is_not_an_exported_version_is_refused_and_leaves_nothing(
    other: PolicyStore, exported: bytes, name: str
) -> None:
    before = sorted(other.path.rglob("*"))
    with pytest.raises((ArchiveRefused, InvalidManifest, InvalidWeights)) as refused:
        other.import_archive(CRAFTED[name](exported), actor="someone")
    assert len(str(refused.value)) < 300
    assert other.list() == []
    assert other.audit() == []
    assert sorted(other.path.rglob("*")) == before


def with_weights(archive: bytes, weights: bytes) -> bytes:
    files = files_of(archive) | {"policy.safetensors": weights}
    return with_manifest(write_archive(files), weights_sha256=sha256(weights))


def test_weights_that_are_no_numbers_are_refused(other: PolicyStore, exported: bytes) -> None:
    tensors = {name: tensor.copy() for name, tensor in read_archive(exported).weights.items()}
    tensors["action_net.bias"][0] = np.nan
    with pytest.raises(InvalidWeights, match="not finite"):
        other.import_archive(with_weights(exported, save(tensors)), actor="someone")


@pytest.mark.parametrize("kind", ["zip", "pickle"])
def test_code_in_place_of_weights_or_archive_is_refused_and_not_run(
    other: PolicyStore, exported: bytes, tmp_path: Path, kind: str
) -> None:
    """A Stable-Baselines3 zip holds pickles, which run what they like where they are loaded."""
    ran = tmp_path / "ran"
    code = pickle.dumps(Trap(ran))
    if kind == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as made:
            made.writestr("data", json.dumps({"policy_class": {":serialized:": code.hex()}}))
            made.writestr("policy.pth", code)
        code = buffer.getvalue()
    with pytest.raises(ArchiveRefused, match=kind):
        other.import_archive(code, actor="someone")
    with pytest.raises(InvalidWeights, match="cannot be read"):
        other.import_archive(with_weights(exported, code), actor="someone")
    assert not ran.exists()
    pickle.loads(pickle.dumps(Trap(ran)))
    assert ran.exists()  # the trap works


def test_an_archive_over_the_limit_is_not_even_looked_at(exported: bytes) -> None:
    with pytest.raises(ArchiveRefused, match=f"{len(exported)} bytes; at most 1000"):
        read_archive(exported, most_bytes=1000)


def test_reading_changes_and_makes_nothing(store: PolicyStore, exported: bytes) -> None:
    before = store.audit()
    with PolicyStore(store.path, read_only=True) as reader:
        assert reader.export(3) == exported
        with pytest.raises(StoreError, match="reading only"):
            reader.import_archive(exported, actor="someone")
    assert store.audit() == before
