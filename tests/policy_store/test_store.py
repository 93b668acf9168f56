from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policy_store import (
    InvalidAlias,
    InvalidManifest,
    InvalidWeights,
    ManifestDraft,
    PolicyStore,
    ReadOnlyStore,
    StoreNotFound,
    StoreUnavailable,
    VersionCorrupt,
    VersionQuarantined,
    VersionUnknown,
)

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_version_loads_as_it_was_created(
    store: PolicyStore, resps_draft: ManifestDraft, weights_for: WeightsFor
) -> None:
    weights = weights_for(resps_draft)
    version = store.create(resps_draft, weights, actor="trainer")
    policy = store.load(version)
    assert (policy.manifest.version, policy.manifest.created) == (1, "2026-11-30T12:00:00.123456Z")
    assert policy.manifest.golden == resps_draft.golden
    assert all(np.array_equal(policy.weights[name], tensor) for name, tensor in weights.items())
    assert files(store.path / "versions") == {"1", "1/manifest.json", "1/policy.safetensors"}


def test_a_static_version_has_a_manifest_alone(store: PolicyStore, static_draft: ManifestDraft) -> None:
    version = store.create(static_draft, actor="daemon")
    assert store.load(version).weights == {}
    assert files(store.path / "versions") == {"1", "1/manifest.json"}


def test_the_list_shows_versions_oldest_first_with_aliases(
    store: PolicyStore, static_draft: ManifestDraft, resps_draft: ManifestDraft, weights_for: WeightsFor
) -> None:
    store.create(static_draft, actor="daemon")
    store.create(replace(resps_draft, parent=1), weights_for(resps_draft), actor="trainer")
    for alias in ("champion", "baseline"):
        store.set_alias(alias, 1, actor="daemon", reason="first")
    first, second = store.list()
    assert (first.version, first.kind, first.action, first.aliases) == (
        1,
        "static",
        (16, 4, 4),
        ("baseline", "champion"),
    )
    assert (second.version, second.kind, second.action, second.parent) == (2, "resps", None, 1)
    assert (second.state, second.aliases) == ("good", ())


def test_a_version_is_found_by_number_text_or_alias(store: PolicyStore, static_draft: ManifestDraft) -> None:
    store.create(static_draft, actor="daemon")
    store.set_alias("champion", 1, actor="daemon", reason="first")
    assert [store.resolve(name) for name in (1, "1", "champion")] == [1, 1, 1]
    assert store.load("champion").manifest.version == 1


@pytest.mark.parametrize("name", [0, -1, 2, 2**63, "2", "0", "", "candidate", "1 ", "٣", "9" * 5000])
def test_an_unknown_name_is_said_to_be_unknown(
    store: PolicyStore, static_draft: ManifestDraft, name: str | int
) -> None:
    store.create(static_draft, actor="daemon")
    with pytest.raises(VersionUnknown):
        store.resolve(name)
    with pytest.raises(VersionUnknown):
        store.load(name)


def test_a_refused_draft_leaves_nothing_and_takes_no_number(
    store: PolicyStore, static_draft: ManifestDraft, resps_draft: ManifestDraft, weights_for: WeightsFor
) -> None:
    with pytest.raises(InvalidWeights):
        store.create(resps_draft, {}, actor="trainer")
    with pytest.raises(InvalidManifest):
        store.create(replace(static_draft, parent=1), actor="trainer")
    assert store.list() == []
    assert files(store.path / "versions") == set()
    assert store.create(static_draft, actor="daemon") == 1


def test_moving_an_alias_is_audited_with_its_reason_and_figures(
    store: PolicyStore, static_draft: ManifestDraft
) -> None:
    for _ in range(2):
        store.create(static_draft, actor="daemon")
    store.set_alias("champion", 1, actor="daemon", reason="first")
    entry = store.set_alias("champion", 2, actor="rollout", reason="faster", figures={"log_ratio": 0.05, "n": 120})
    last = store.audit()[-1]
    assert last.id == entry
    assert (last.event, last.alias, last.from_version, last.to_version) == ("alias", "champion", 1, 2)
    assert (last.actor, last.reason, last.figures) == ("rollout", "faster", {"log_ratio": 0.05, "n": 120})
    assert last.at == "2026-11-30T12:00:00.123456Z"
    assert store.aliases() == {"champion": 2}


def test_moving_an_alias_to_where_it_points_changes_nothing(store: PolicyStore, static_draft: ManifestDraft) -> None:
    store.create(static_draft, actor="daemon")
    assert store.set_alias("champion", 1, actor="daemon", reason="first") is not None
    before = store.audit()
    assert store.set_alias("champion", 1, actor="daemon", reason="again") is None
    assert store.audit() == before


@pytest.mark.parametrize("alias", ["", "1", "Champion", "a b", "-x", "x" * 65, "champion\n"])
def test_an_alias_that_could_be_taken_for_something_else_is_refused(
    store: PolicyStore, static_draft: ManifestDraft, alias: str
) -> None:
    store.create(static_draft, actor="daemon")
    with pytest.raises(InvalidAlias):
        store.set_alias(alias, 1, actor="daemon", reason="")


def test_an_alias_cannot_point_to_nothing(store: PolicyStore) -> None:
    with pytest.raises(VersionUnknown):
        store.set_alias("champion", 1, actor="daemon", reason="")


def test_a_quarantined_version_stays_and_takes_no_new_alias(store: PolicyStore, static_draft: ManifestDraft) -> None:
    store.create(static_draft, actor="daemon")
    store.set_alias("candidate", 1, actor="rollout", reason="trial")
    assert store.quarantine(1, actor="rollout", reason="slower") is not None
    assert store.quarantine(1, actor="rollout", reason="slower") is None
    assert store.list()[0].state == "quarantined"
    assert store.load(1).manifest.version == 1
    assert store.aliases() == {"candidate": 1}
    with pytest.raises(VersionQuarantined):
        store.set_alias("champion", 1, actor="someone", reason="")
    with pytest.raises(VersionUnknown):
        store.quarantine(2, actor="someone", reason="")


def test_the_audit_log_cannot_be_rewritten(store: PolicyStore, static_draft: ManifestDraft) -> None:
    store.create(static_draft, actor="daemon")
    with sqlite3.connect(store.path / "registry.db") as connection:
        for statement in ("DELETE FROM audit", "UPDATE audit SET reason = 'better'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    assert [entry.event for entry in store.audit()] == ["create"]


def damage_weights(folder: Path) -> None:
    file = folder / "policy.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_manifest(folder: Path) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"note": "better"}))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (damage_weights, "hash"),
        (damage_manifest, "not the one that was published"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "not JSON"),
        (lambda folder: (folder / "policy.safetensors").unlink(), "No such file"),
        (lambda folder: (folder / "manifest.json").unlink(), "No such file"),
        (lambda folder: folder.rename(folder.with_name("7")), "No such file"),
    ],
)
def test_a_damaged_version_does_not_load_and_says_why(
    store: PolicyStore,
    resps_draft: ManifestDraft,
    weights_for: WeightsFor,
    damage: Callable[[Path], object],
    fault: str,
) -> None:
    store.create(resps_draft, weights_for(resps_draft), actor="trainer")
    damage(store.path / "versions" / "1")
    with pytest.raises(VersionCorrupt, match=fault) as refused:
        store.load(1)
    assert refused.value.version == 1
    assert len(store.list()) == 1


def test_reading_creates_nothing_and_needs_no_writer(
    tmp_path: Path, static_draft: ManifestDraft, resps_draft: ManifestDraft
) -> None:
    path = tmp_path / "policies"
    with PolicyStore(path) as writer:
        writer.create(static_draft, actor="daemon")
    before = files(path)
    with PolicyStore(path, read_only=True) as reader:
        assert reader.load(1).manifest.action == (16, 4, 4)
        assert len(reader.list()) == 1
        with pytest.raises(ReadOnlyStore):
            reader.create(static_draft, actor="someone")
        with pytest.raises(ReadOnlyStore):
            reader.set_alias("champion", 1, actor="someone", reason="")
        with pytest.raises(ReadOnlyStore):
            reader.quarantine(1, actor="someone", reason="")
        assert files(path) == before


def test_a_reader_sees_what_an_open_writer_just_did(store: PolicyStore, static_draft: ManifestDraft) -> None:
    with PolicyStore(store.path, read_only=True) as reader:
        assert reader.list() == []
        store.create(static_draft, actor="daemon")
        assert [each.version for each in reader.list()] == [1]


def test_opening_nothing_for_reading_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        PolicyStore(tmp_path / "policies", read_only=True)
    assert files(tmp_path) == set()


def test_a_registry_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    path.mkdir()
    (path / "registry.db").write_bytes(b"not a database, whatever its name says" * 100)
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable, match="not a database"):
            PolicyStore(path, read_only=read_only)


def test_a_registry_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    PolicyStore(path).close()
    with sqlite3.connect(path / "registry.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnavailable, match="99"):
        PolicyStore(path)


def test_a_path_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        PolicyStore(tmp_path / "file" / "policies")


def test_a_path_with_characters_of_uris_is_a_path(tmp_path: Path, static_draft: ManifestDraft) -> None:
    path = tmp_path / "a ?b#c%20d"
    with PolicyStore(path) as store:
        store.create(static_draft, actor="daemon")
    with PolicyStore(path, read_only=True) as reader:
        assert len(reader.list()) == 1
