"""Two processes do everything at once to one store, and neither fails nor undoes the other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from policy_store import HistoryQuery, ManifestDraft, PolicyStore, VersionInUse, VersionUnknown

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]
ROUNDS = 8


def work(path: Path, name: str, draft: ManifestDraft, weights: dict[str, Any], archive: bytes) -> list[int]:
    """Create, import, move, read, remove, collect; returns the numbers that this process got."""
    mine = []
    with PolicyStore(path) as store:
        for _ in range(ROUNDS):
            version = store.create(draft, weights, actor=name)
            mine += [version, store.import_archive(archive, actor=name)]
            with suppress(VersionUnknown), store.changing(actor=name, reason="turn") as change:
                champion = change.aliases().get("champion")
                if champion is not None:
                    change.move_alias("last-good", champion)
                change.move_alias("champion", version, "promote")  # unknown where the other has collected it by now
            assert store.load("last-good").manifest.kind == "resps"
            with suppress(VersionUnknown, VersionInUse):  # the other was faster, or has made it the champion
                store.remove(version - 1, actor=name, reason="old")
            store.collect(4, actor=name, reason="old")
            for each in store.list():
                with suppress(VersionUnknown):  # removed meanwhile
                    store.load(each.version)
    return mine


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path, resps_draft: ManifestDraft, weights_for: WeightsFor) -> None:
    path, weights = tmp_path / "store", weights_for(resps_draft)
    with PolicyStore(path) as store:
        archive = store.export(store.create(resps_draft, weights, actor="test"))
        for alias in ("champion", "last-good"):
            store.set_alias(alias, 1, actor="test", reason="first")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        both = pool.starmap(work, [(path, name, resps_draft, weights, archive) for name in ("a", "b")])
    numbers = sorted(both[0] + both[1])
    assert numbers == list(range(2, 2 + 4 * ROUNDS))
    with PolicyStore(path) as store:
        aliases = store.aliases()
        moves = store.history(HistoryQuery(alias="champion"))
        assert len(moves) > ROUNDS
        assert [move.from_version for move in moves] == [None, *(move.to_version for move in moves[:-1])]
        assert (aliases["last-good"], aliases["champion"]) == (moves[-1].from_version, moves[-1].to_version)
        listed = {each.version for each in store.list()}
        assert set(aliases.values()) <= listed
        assert {path.name for path in (path / "versions").iterdir()} == set(map(str, listed))
        assert all(entry.event != "set-aside" for entry in store.audit())
