"""A writer that is killed before any one of its operations leaves a store that opens, verifies and goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.crashing import killed_everywhere

from policy_store import ManifestDraft, PolicyStore
from policy_store.archive import Archive, read_archive

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]
Work = Callable[[PolicyStore], object]


@pytest.fixture
def before(tmp_path: Path, static_draft: ManifestDraft, resps_draft: ManifestDraft, weights_for: WeightsFor) -> Path:
    """A store with five versions, of which 4 is champion, 2 its parent, and 3 and 5 are nobody's."""
    path = tmp_path / "before"
    weights = weights_for(resps_draft)
    with PolicyStore(path) as store:
        store.create(static_draft, actor="daemon")
        for parent in (None, None, 2, None):
            store.create(replace(resps_draft, parent=parent), weights, actor="trainer")
        store.set_alias("baseline", 1, actor="daemon", reason="")
        store.set_alias("last-good", 1, actor="daemon", reason="")
        store.set_alias("champion", 4, actor="daemon", reason="")
    return path


def create(store: PolicyStore, draft: ManifestDraft, weights: dict[str, Any]) -> None:
    store.create(replace(draft, parent=4), weights, actor="trainer")


def promote(store: PolicyStore) -> None:
    with store.changing(actor="rollout", reason="faster") as change:
        change.move_alias("last-good", change.aliases()["champion"])
        change.move_alias("champion", 5, "promote")
        change.quarantine(3)
        change.freeze()


def check(store: PolicyStore) -> None:
    """What holds of every store, however its last writer ended."""
    listed = [each.version for each in store.list()]
    assert set(store.aliases().values()) <= set(listed)
    for version in listed:
        assert store.load(version).manifest.version == version
    last: dict[str, int | None] = {}
    for entry in store.audit():
        if entry.alias is not None:
            assert last.get(entry.alias) == entry.from_version
            last[entry.alias] = entry.to_version
    assert store.aliases() == last
    folders = {path.name for path in (store.path / "versions").iterdir()} - {".aside"}
    assert folders == set(map(str, listed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "torn"),
    [("create", False), ("create", True), ("import", True), ("promote", False), ("collect", False), ("remove", False)],
)
def test_a_writer_killed_before_any_operation_leaves_all_or_nothing(
    tmp_path: Path, before: Path, resps_draft: ManifestDraft, weights_for: WeightsFor, name: str, torn: bool
) -> None:
    path = tmp_path / "store"
    weights = weights_for(resps_draft)
    with PolicyStore(before, read_only=True) as source:
        archive: Archive = read_archive(source.export(4))
    work: dict[str, Work] = {
        "create": lambda store: create(store, resps_draft, weights),
        "import": lambda store: store.import_archive(archive, actor="someone"),
        "promote": promote,
        "collect": lambda store: store.collect(0, actor="retention", reason="old"),
        "remove": lambda store: store.remove(5, actor="someone", reason="wrong"),
    }

    def restore() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(before, path)

    def run(arm: Callable[[], None]) -> None:
        with PolicyStore(path) as store:
            arm()
            work[name](store)

    old = state(before)
    restore()
    run(lambda: None)
    new = state(path)
    assert new != old
    seen = []
    for at in killed_everywhere(path, restore, run, torn=torn):
        with PolicyStore(path) as store:
            check(store)
            seen.append(state(path))
            assert seen[-1] in (old, new), f"killed before operation {at}"
            given = [each.version for each in store.list()]
            assert store.create(resps_draft, weights, actor="trainer") > max(5, *given)
            check(store)
    assert seen[0] == old
    assert seen == sorted(seen, key=lambda each: each == new)  # once it is done it is not undone
    assert len(seen) > 10


def state(path: Path) -> object:
    """What a reader sees of a store."""
    with PolicyStore(path, read_only=True) as store:
        versions = tuple((each.version, each.kind, each.state, each.aliases) for each in store.list())
        return versions, store.flags().freeze is not None


@pytest.mark.slow
def test_the_first_start_may_be_killed_anywhere(tmp_path: Path, static_draft: ManifestDraft) -> None:
    path = tmp_path / "store"

    def start(arm: Callable[[], None]) -> None:
        arm()
        with PolicyStore(path) as store:
            store.create(static_draft, actor="daemon")

    for _ in killed_everywhere(path, lambda: shutil.rmtree(path, ignore_errors=True), start):
        with PolicyStore(path) as store:
            check(store)
            assert store.create(static_draft, actor="daemon") <= 2
