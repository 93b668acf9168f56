"""What a crash leaves behind, at each point of publishing a version."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import policy_store.store
from policy_store import ManifestDraft, PolicyStore
from policy_store.artifact import write_version

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]


class Crash(BaseException):
    """Ends a call as a killed process would: no handler of ours catches it."""


@pytest.fixture
def crash_after_rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the next `create` die between the folder's rename and the registry's row."""

    def arm() -> None:
        def write_and_die(*arguments: Any) -> None:
            write_version(*arguments)
            raise Crash

        monkeypatch.setattr(policy_store.store, "write_version", write_and_die)

    return arm


def versions(store: PolicyStore) -> list[int]:
    return [each.version for each in store.list()]


def test_a_half_written_folder_is_never_listed_and_is_cleaned_up(
    store: PolicyStore, static_draft: ManifestDraft
) -> None:
    half = store.path / "versions" / ".tmp-1-0123"
    half.mkdir()
    (half / "manifest.json").write_text('{"version"')
    assert versions(store) == []
    with PolicyStore(store.path, read_only=True) as reader:
        assert versions(reader) == []
    assert half.exists()
    PolicyStore(store.path).close()
    assert not half.exists()


def test_a_folder_renamed_before_the_crash_is_adopted(
    store: PolicyStore,
    resps_draft: ManifestDraft,
    weights_for: WeightsFor,
    crash_after_rename: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash_after_rename()
    with pytest.raises(Crash):
        store.create(resps_draft, weights_for(resps_draft), actor="trainer")
    assert versions(store) == []
    with PolicyStore(store.path) as reopened:
        assert versions(reopened) == [1]
        assert reopened.load(1).manifest.kind == "resps"
        assert [(entry.event, entry.to_version) for entry in reopened.audit()] == [("adopt", 1)]
        monkeypatch.undo()
        assert reopened.create(resps_draft, weights_for(resps_draft), actor="trainer") == 2


def test_another_process_that_is_open_already_goes_on_after_the_crash(
    store: PolicyStore,
    static_draft: ManifestDraft,
    crash_after_rename: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash_after_rename()
    with pytest.raises(Crash):
        store.create(static_draft, actor="daemon")
    monkeypatch.undo()
    assert store.create(static_draft, actor="daemon") == 2
    assert versions(store) == [1, 2]


def test_a_folder_that_does_not_verify_is_set_aside_and_its_number_burnt(
    store: PolicyStore, static_draft: ManifestDraft
) -> None:
    store.create(static_draft, actor="daemon")
    folder = store.path / "versions" / "2"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    with PolicyStore(store.path) as reopened:
        assert versions(reopened) == [1]
        assert not folder.exists()
        (aside,) = (store.path / "versions" / ".aside").iterdir()
        assert (aside / "manifest.json").read_text() == "{}"
        assert reopened.audit()[-1].event == "set-aside"
        assert reopened.create(static_draft, actor="daemon") == 3


def test_a_removed_version_does_not_come_back_and_its_number_is_not_used_again(
    store: PolicyStore, static_draft: ManifestDraft
) -> None:
    """Removal deletes the row first; a crash before the folder's end must not resurrect it."""
    for _ in range(2):
        store.create(static_draft, actor="daemon")
    with sqlite3.connect(store.path / "registry.db") as connection:
        connection.execute("DELETE FROM versions WHERE version = 2")
    connection.close()
    with PolicyStore(store.path) as reopened:
        assert versions(reopened) == [1]
        assert reopened.create(static_draft, actor="daemon") == 3


def test_a_lost_registry_is_rebuilt_from_the_folders(store: PolicyStore, static_draft: ManifestDraft) -> None:
    for _ in range(11):
        store.create(static_draft, actor="daemon")
    store.set_alias("champion", 3, actor="daemon", reason="first")
    store.close()
    for file in store.path.glob("registry.db*"):
        file.unlink()
    with PolicyStore(store.path) as rebuilt:
        assert versions(rebuilt) == list(range(1, 12))
        assert rebuilt.aliases() == {}
        assert rebuilt.create(static_draft, actor="daemon") == 12


def test_a_copied_folder_under_another_number_is_not_a_version(store: PolicyStore, static_draft: ManifestDraft) -> None:
    store.create(static_draft, actor="daemon")
    shutil.copytree(store.path / "versions" / "1", store.path / "versions" / "2")
    with PolicyStore(store.path) as reopened:
        assert versions(reopened) == [1]


def test_foreign_files_are_left_alone(store: PolicyStore, static_draft: ManifestDraft) -> None:
    for name in ("README", "007", "１", "1.bak"):
        (store.path / "versions" / name).mkdir()
    store.create(static_draft, actor="daemon")
    assert versions(store) == [1]
    assert (store.path / "versions" / "007").exists()


def create_many(path: Path, draft: ManifestDraft, count: int) -> list[int]:
    with PolicyStore(path) as store:
        return [store.create(draft, actor="process") for _ in range(count)]


def test_processes_that_create_at_once_never_share_a_number(tmp_path: Path, static_draft: ManifestDraft) -> None:
    """They open a store that is not there yet, too."""
    path = tmp_path / "policies"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.starmap(create_many, [(path, static_draft, 8)] * 2)
    with PolicyStore(path) as store:
        assert sorted(results[0] + results[1]) == versions(store) == list(range(1, 17))
        assert all(store.load(version).manifest.version == version for version in versions(store))
