"""Removing versions: by hand, and the old ones at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_store import Flag, Flags, ManifestDraft, PolicyStore, VersionInUse, VersionSummary, VersionUnknown
from policy_store.retention import plan

WeightsFor = Callable[[ManifestDraft], dict[str, Any]]


@pytest.fixture
def filled(
    store: PolicyStore, static_draft: ManifestDraft, resps_draft: ManifestDraft, weights_for: WeightsFor
) -> PolicyStore:
    """1 baseline, 2 > 3 > 4 (champion) > 5 > 6 (learner), each the parent of the next."""
    store.create(static_draft, actor="daemon")
    for parent in (None, 2, 3, 4, 5):
        store.create(replace(resps_draft, parent=parent), weights_for(resps_draft), actor="trainer")
    for alias, version in (("baseline", 1), ("champion", 4), ("learner", 6)):
        store.set_alias(alias, version, actor="daemon", reason="")
    return store


def folders(store: PolicyStore) -> set[str]:
    return {path.name for path in (store.path / "versions").iterdir()}


def listed(store: PolicyStore) -> list[int]:
    return [each.version for each in store.list()]


def test_collecting_keeps_aliases_their_parents_and_the_newest_and_says_why(filled: PolicyStore) -> None:
    would = filled.collect(1, actor="retention", reason="old", dry_run=True)
    assert listed(filled) == [1, 2, 3, 4, 5, 6]
    done = filled.collect(1, actor="retention", reason="old")
    assert done == would
    assert done.removed == (2,)
    assert done.kept == {
        1: "baseline",
        3: "parent of version 4, the champion",
        4: "champion",
        5: "parent of version 6, the learner",
        6: "learner",
    }
    assert listed(filled) == [1, 3, 4, 5, 6]
    assert folders(filled) == {"1", "3", "4", "5", "6"}
    entry = filled.audit()[-1]
    assert (entry.event, entry.from_version, entry.actor, entry.reason) == ("remove", 2, "retention", "old")


def test_collecting_again_finds_nothing_to_remove(filled: PolicyStore) -> None:
    filled.collect(0, actor="retention", reason="old")
    before = filled.audit()
    assert filled.collect(0, actor="retention", reason="old").removed == ()
    assert filled.audit() == before


def test_the_newest_are_kept_whoever_they_are(filled: PolicyStore, static_draft: ManifestDraft) -> None:
    for _ in range(3):
        filled.create(static_draft, actor="daemon")
    done = filled.collect(2, actor="retention", reason="old")
    assert done.removed == (2, 7)
    assert done.kept[9] == "one of the newest 2"


def summary(version: int, parent: int | None, aliases: tuple[str, ...]) -> VersionSummary:
    return VersionSummary(version, "resps", "good", "", parent, None, "", aliases)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12), st.integers(0, 5), st.integers(0, 15))
def test_no_plan_removes_what_is_needed(made: list[tuple[bool, int]], keep: int, pinned: int) -> None:
    versions = [
        summary(number, parent if 0 < parent < number else None, ("champion",) if aliased else ())
        for number, (aliased, parent) in enumerate(made, start=1)
    ]
    flags = Flags(pin=Flag("", "", "", pinned)) if pinned else Flags()
    planned = plan(versions, flags, keep)
    numbers = {each.version for each in versions}
    assert set(planned.removed) | planned.kept.keys() == numbers
    assert not set(planned.removed) & planned.kept.keys()
    needed = {each.version for each in versions if each.aliases} | ({pinned} & numbers)
    needed |= {each.parent for each in versions if each.aliases and each.parent is not None}
    needed |= set(sorted(numbers, reverse=True)[:keep])
    assert planned.kept.keys() == needed


def test_a_negative_number_of_versions_is_refused(filled: PolicyStore) -> None:
    with pytest.raises(ValueError, match="-1"):
        filled.collect(-1, actor="retention", reason="")


def test_a_removed_version_is_gone_but_not_forgotten(filled: PolicyStore, static_draft: ManifestDraft) -> None:
    filled.remove(5, actor="operator:ann", reason="wrong data")
    with pytest.raises(VersionUnknown):
        filled.load(5)
    assert folders(filled) == {"1", "2", "3", "4", "6"}
    assert filled.list()[-1].parent == 5
    entry = filled.audit()[-1]
    assert (entry.event, entry.from_version, entry.reason) == ("remove", 5, "wrong data")
    assert filled.create(static_draft, actor="daemon") == 7
    with PolicyStore(filled.path) as reopened:
        assert 5 not in listed(reopened)


def test_a_version_with_an_alias_is_not_removed(filled: PolicyStore) -> None:
    with pytest.raises(VersionInUse, match="champion"):
        filled.remove(4, actor="operator:ann", reason="")
    with pytest.raises(VersionUnknown):
        filled.remove(99, actor="operator:ann", reason="")
    assert filled.load(4).manifest.version == 4


def test_removing_the_last_number_does_not_give_it_out_again(filled: PolicyStore, static_draft: ManifestDraft) -> None:
    version = filled.create(static_draft, actor="daemon")
    filled.remove(version, actor="operator:ann", reason="")
    with PolicyStore(filled.path) as reopened:
        assert reopened.create(static_draft, actor="daemon") == version + 1


def test_a_version_that_goes_while_it_is_read_is_unknown_and_not_damaged(
    filled: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import policy_store.store as module

    read = module.read_version

    def removed_first(*arguments: Any) -> object:
        filled.remove(5, actor="someone else", reason="")
        return read(*arguments)

    monkeypatch.setattr(module, "read_version", removed_first)
    with pytest.raises(VersionUnknown):
        filled.load(5)
