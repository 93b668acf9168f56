"""Changes that belong together, the flags, and the questions that the log answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from policy_store import Flags, HistoryQuery, ManifestDraft, PolicyStore, ReadOnlyStore, VersionQuarantined
from policy_store.audit import timestamp

NOON = 1_796_040_000_123_456_789


@pytest.fixture
def filled(store: PolicyStore, static_draft: ManifestDraft) -> PolicyStore:
    for _ in range(4):
        store.create(static_draft, actor="daemon")
    store.set_alias("champion", 1, actor="daemon", reason="first")
    return store


def test_several_changes_are_one_and_share_author_reason_and_figures(filled: PolicyStore) -> None:
    with filled.changing(actor="rollout", reason="faster", figures={"n": 120}) as change:
        assert change.move_alias("last-good", change.aliases()["champion"])
        assert change.move_alias("champion", 2, "promote")
        assert change.quarantine(3)
        assert change.summary(3).state == "quarantined"
        entries = change.entries
    assert filled.aliases() == {"champion": 2, "last-good": 1}
    last = filled.history(HistoryQuery(limit=3))
    assert [entry.id for entry in last] == entries
    assert [(e.event, e.alias, e.from_version, e.to_version) for e in last] == [
        ("alias", "last-good", None, 1),
        ("promote", "champion", 1, 2),
        ("quarantine", None, None, 3),
    ]
    assert {(e.actor, e.reason, e.at) for e in last} == {("rollout", "faster", timestamp(NOON))}
    assert all(e.figures == {"n": 120} for e in last)


def test_a_change_that_fails_half_way_leaves_everything_as_it_was(filled: PolicyStore) -> None:
    filled.quarantine(3, actor="rollout", reason="slower")
    before = filled.audit()

    def half_way() -> None:
        with filled.changing(actor="x", reason="") as change:
            change.move_alias("champion", 2)
            change.pin(2)
            change.remove(4)
            change.move_alias("candidate", 3)

    with pytest.raises(VersionQuarantined):
        half_way()
    assert filled.aliases() == {"champion": 1}
    assert filled.flags() == Flags()
    assert filled.audit() == before
    assert filled.load(4).manifest.version == 4


def test_an_alias_can_be_dropped_once(filled: PolicyStore) -> None:
    with filled.changing(actor="x", reason="over") as change:
        assert change.drop_alias("champion")
        assert not change.drop_alias("champion")
    assert filled.aliases() == {}
    assert (filled.audit()[-1].from_version, filled.audit()[-1].to_version) == (1, None)


def test_flags_say_who_when_and_why_and_outlive_the_process(filled: PolicyStore) -> None:
    with filled.changing(actor="operator:ann", reason="holiday") as change:
        assert change.pin(1)
        assert change.freeze()
        assert not change.pin(1)
        assert not change.freeze()
    with PolicyStore(filled.path, read_only=True) as reader:
        flags = reader.flags()
    assert flags.pin is not None
    assert flags.freeze is not None
    assert (flags.pin.version, flags.pin.actor, flags.pin.reason) == (1, "operator:ann", "holiday")
    assert (flags.freeze.version, flags.freeze.at) == (None, timestamp(NOON))
    with filled.changing(actor="operator:bob", reason="back") as change:
        assert change.unpin()
        assert change.unfreeze()
        assert not change.unpin()
        assert not change.unfreeze()
    assert filled.flags() == Flags()
    assert [(e.event, e.from_version, e.to_version) for e in filled.history(HistoryQuery(limit=4))] == [
        ("pin", None, 1),
        ("freeze", None, None),
        ("unpin", 1, None),
        ("unfreeze", None, None),
    ]


def test_a_reader_changes_nothing(filled: PolicyStore) -> None:
    with (
        PolicyStore(filled.path, read_only=True) as reader,
        pytest.raises(ReadOnlyStore),
        reader.changing(actor="x", reason=""),
    ):
        raise AssertionError("a reader must not come here")


def test_history_answers_by_version_alias_event_actor_time_and_page(
    tmp_path: Path, static_draft: ManifestDraft
) -> None:
    now = [NOON]
    with PolicyStore(tmp_path / "s", lambda: now[0]) as store:
        for _ in range(3):
            store.create(static_draft, actor="daemon")
        now[0] += 10**9
        store.set_alias("champion", 1, actor="daemon", reason="")
        store.set_alias("champion", 2, actor="operator:ann", reason="")
        store.set_alias("learner", 3, actor="update", reason="")
        store.quarantine(2, actor="rollout", reason="")

        def ids(query: HistoryQuery) -> list[int]:
            return [entry.id for entry in store.history(query)]

        assert ids(HistoryQuery()) == [1, 2, 3, 4, 5, 6, 7]
        assert ids(HistoryQuery(version=2)) == [2, 5, 7]
        assert ids(HistoryQuery(version=1)) == [1, 4, 5]
        assert ids(HistoryQuery(alias="champion")) == [4, 5]
        assert ids(HistoryQuery(events=("quarantine", "create"))) == [1, 2, 3, 7]
        assert ids(HistoryQuery(actor="operator:ann")) == [5]
        assert ids(HistoryQuery(since=timestamp(NOON + 10**9))) == [4, 5, 6, 7]
        assert ids(HistoryQuery(limit=2)) == [6, 7]
        assert ids(HistoryQuery(limit=2, before_id=6)) == [4, 5]
        assert ids(HistoryQuery(version=2, limit=1)) == [7]
