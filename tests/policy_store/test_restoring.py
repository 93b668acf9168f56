"""A damaged registry at start: its newest sound backup takes its place, else the version folders tell what there is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from policy_store import ManifestDraft, PolicyStore, StoreInService, StoreUnavailable
from policy_store.presence import in_service
from policy_store.restoring import REGISTRY, Restored, damage, restore_registry

NOON = 1_796_040_000_000_000_000


def create(path: Path, versions: int) -> None:
    with PolicyStore(path, lambda: NOON) as store:
        for _ in range(versions):
            store.create(ManifestDraft(kind="static", action=(16, 4, 4), action_table=((16, 4, 4),)), actor="test")


def back_up(path: Path, name: str) -> Path:
    copy = path.parent / name
    with closing(sqlite3.connect(path / REGISTRY)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    return copy


def restore(path: Path, *backups: Path) -> Restored | None:
    return restore_registry(path, backups, lambda: NOON)


def overwrite(file: Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def overwrite_pages(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def write_text(file: Path) -> None:
    file.write_text("not a database" * 1000)


DAMAGES = [overwrite, overwrite_pages, empty, write_text, Path.unlink]


@pytest.mark.parametrize("harm", DAMAGES)
def test_the_newest_sound_backup_takes_the_place_of_a_damaged_registry(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "policies"
    create(path, 1)
    oldest = back_up(path, "registry-1.db")
    create(path, 1)
    with PolicyStore(path) as store:
        store.set_alias("champion", 2, actor="ann", reason="better")
    middle, newest = back_up(path, "registry-2.db"), back_up(path, "registry-3.db")
    overwrite_pages(newest)  # a backup may be damaged as well
    create(path, 1)
    before = (path / REGISTRY).read_bytes()
    harm(path / REGISTRY)
    assert damage(path / REGISTRY) is not None

    done = restore(path, oldest, middle, newest)
    assert done is not None
    assert done.backup == middle
    with PolicyStore(path) as store:
        assert store.aliases() == {"champion": 2}
        assert [each.version for each in store.list()] == [1, 2, 3]  # the third is younger than the backup
        assert store.load(3).manifest.version == 3
        assert [each.event for each in store.audit()][-1] == "adopt"
    if harm is not Path.unlink:
        assert done.set_aside is not None
        assert done.set_aside.exists()
        assert done.set_aside.read_bytes() != before
    assert restore(path, oldest, middle, newest) is None


@pytest.mark.parametrize("harm", DAMAGES)
def test_without_a_backup_the_folders_tell_which_versions_there_are(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "policies"
    create(path, 3)
    (path / "versions" / "2" / "manifest.json").write_text("{")
    harm(path / REGISTRY)
    done = restore(path)
    assert done is not None
    assert done.backup is None
    assert "version folders" in str(done)
    with PolicyStore(path) as store:
        assert [each.version for each in store.list()] == [1, 3]
        assert store.aliases() == {}
        create(path, 1)
        assert [each.version for each in store.list()] == [1, 3, 4]


def test_a_sound_registry_and_a_first_start_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    assert restore(path) is None
    create(path, 1)
    backup = back_up(path, "registry-1.db")
    create(path, 1)
    before = (path / REGISTRY).read_bytes()
    assert restore(path, backup) is None
    assert (path / REGISTRY).read_bytes() == before
    with closing(sqlite3.connect(path / REGISTRY)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert restore(path, backup) is None  # of a newer release, which is no damage
    with pytest.raises(StoreUnavailable, match="schema 99"):
        PolicyStore(path)


def test_nothing_is_done_behind_another_daemons_back(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    create(path, 1)
    overwrite(path / REGISTRY)
    with in_service(path), pytest.raises(StoreInService):
        restore(path)
    assert (path / REGISTRY).read_bytes()[:1] == b"\xff"
