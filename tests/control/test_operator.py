"""The operator: what may become champion, where a rollback goes, and that nothing moves when something is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.operating import ANN, DRY, ROLLOUT, NoonClock, damage, moves, serves, states

from policy_store import PolicyStore, StoreUnavailable
from policy_store.archive import read_archive
from respsd.control.action import Action, ActionTable
from respsd.control.bootstrap import open_policies, policy_loader
from respsd.control.manifests import static_manifest
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.control.router import PolicyRouter
from respsd.engine.request import Speculation
from respsd.errors import ChangeRefused, Overtaken, PolicyRefused, UnknownPolicy

BASELINE = Action(16, 4, 4)


def test_promoting_moves_champion_and_last_good_and_serves_from_the_next_window_on(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, schema: ObservationSchema, good: list[int]
) -> None:
    source = router.resolve(Speculation())
    change = operator.promote(good[0], ANN)
    assert moves(change) == [("promote", "champion", 1, good[0]), ("alias", "last-good", None, 1)]
    assert all(
        (each.actor, each.reason, each.figures) == ("operator:ann", "because", {"n": 120}) for each in change.entries
    )
    assert {name: store.aliases()[name] for name in ("champion", "last-good")} == {"champion": good[0], "last-good": 1}
    decision = source.current().choose(np.zeros(schema.width, np.float32), 0.5)
    assert (decision.policy_version, decision.arm) == (good[0], "champion")
    assert serves(router, schema, "last-good") == (1, "last-good")


def test_a_version_is_named_by_alias_too_and_promoting_the_champion_changes_nothing(
    operator: PolicyOperator, store: PolicyStore
) -> None:
    assert operator.promote("learner", ANN).changed
    before = store.audit()
    again = operator.promote(2, ANN)
    assert not again.changed
    assert store.audit() == before


def test_a_champion_that_did_not_load_at_the_start_serves_once_it_does(
    store: PolicyStore, table: ActionTable, schema: ObservationSchema, operator: PolicyOperator, good: list[int]
) -> None:
    operator.promote(good[0], ANN)
    file = store.path / "versions" / str(good[0]) / "policy.safetensors"
    data = file.read_bytes()
    damage(store, good[0])
    router = open_policies(store, table, schema, BASELINE, rng=np.random.default_rng(0), code_version="0")
    restarted = PolicyOperator(store, policy_loader(store, schema, table.largest, None), router, NoonClock())
    assert serves(router, schema) == (1, "champion")
    with pytest.raises(PolicyRefused):
        restarted.promote(good[0], ANN)
    file.write_bytes(data)
    assert not restarted.promote(good[0], ANN).changed
    assert serves(router, schema) == (good[0], "champion")


@pytest.mark.parametrize("expected", [{"champion": 2}, {"champion": 1, "candidate": 9}, {"last-good": 1}])
def test_a_change_decided_for_versions_that_no_longer_serve_is_refused(
    operator: PolicyOperator,
    store: PolicyStore,
    router: PolicyRouter,
    good: list[int],
    expected: dict[str, int | None],
) -> None:
    operator.set_candidate(good[0], ROLLOUT)
    before, serving = store.audit(), dict(router.serving())
    stale = replace(ROLLOUT, expected=expected)
    for change in (
        lambda: operator.promote(good[1], stale),
        lambda: operator.rollback(stale),
        lambda: operator.withdraw(stale),
        lambda: operator.quarantine(good[1], stale),
    ):
        with pytest.raises(Overtaken):
            change()
    assert (store.audit(), dict(router.serving())) == (before, serving)


def test_a_change_decided_for_versions_that_serve_is_made(operator: PolicyOperator, good: list[int]) -> None:
    operator.set_candidate(good[0], ROLLOUT)
    assert operator.promote(good[0], replace(ROLLOUT, expected={"champion": 1, "candidate": good[0]})).changed


def test_promoting_the_candidate_ends_its_candidacy(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, schema: ObservationSchema, good: list[int]
) -> None:
    operator.set_candidate(good[0], ROLLOUT)
    assert serves(router, schema, "candidate") == (good[0], "candidate")
    change = operator.promote("candidate", ROLLOUT)
    assert moves(change)[-1] == ("alias", "candidate", good[0], None)
    assert "candidate" not in store.aliases()


@pytest.mark.parametrize("fault", ["damaged", "other observations", "golden", "too large", "quarantined", "unknown"])
@pytest.mark.parametrize("call", ["promote", "pin", "set_candidate", "rollback"])
def test_what_cannot_serve_is_refused_before_anything_moves(
    operator: PolicyOperator,
    store: PolicyStore,
    router: PolicyRouter,
    good: list[int],
    schema: ObservationSchema,
    fault: str,
    call: str,
) -> None:
    version = good[0]
    policy = store.load(version)
    draft = read_archive(store.export(version)).draft()
    if fault == "damaged":
        damage(store, version)
    elif fault == "other observations":
        other = {**schema.to_dict(), "fingerprint": "beef"}
        version = store.create(replace(draft, observation_schema=other), policy.weights, actor="test")
    elif fault == "golden":
        assert draft.golden is not None
        golden = replace(draft.golden, logits=tuple(each + 1 for each in draft.golden.logits))
        version = store.create(replace(draft, golden=golden), policy.weights, actor="test")
    elif fault == "too large":
        version = store.create(static_manifest(Action(4096, 8, 32), code_version="0", note=""), actor="test")
    elif fault == "quarantined":
        store.quarantine(version, actor="rollout", reason="slower")
    else:
        version = 404
    if call == "rollback" and fault in ("damaged", "other observations", "golden", "too large"):
        store.set_alias("champion", version, actor="test", reason="")
        store.set_alias("champion", 1, actor="test", reason="")
    before = store.aliases(), store.flags(), store.audit(), dict(router.serving())
    arguments = (ANN, version) if call == "rollback" else (version, ANN)
    with pytest.raises(UnknownPolicy if fault == "unknown" else (PolicyRefused, ChangeRefused)):
        getattr(operator, call)(*arguments)
    assert (store.aliases(), store.flags(), store.audit(), dict(router.serving())) == before


def test_rolling_back_goes_to_the_newest_good_former_champion_and_quarantines(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, schema: ObservationSchema, good: list[int]
) -> None:
    for version in good:
        operator.promote(version, ANN)
    first = operator.rollback(ROLLOUT)
    assert moves(first) == [
        ("rollback", "champion", good[2], good[1]),
        ("alias", "last-good", good[1], good[0]),
        ("quarantine", None, None, good[2]),
    ]
    assert serves(router, schema) == (good[1], "champion")
    assert serves(router, schema, "last-good") == (good[0], "last-good")
    operator.rollback(ROLLOUT)
    last = operator.rollback(ROLLOUT)
    assert moves(last)[0] == ("rollback", "champion", good[0], 1)
    assert serves(router, schema) == (1, "champion")
    assert [version for version, state in states(store).items() if state == "quarantined"] == good
    assert not operator.rollback(ROLLOUT).changed
    assert states(store)[1] == "good"


def test_a_former_champion_that_is_quarantined_or_damaged_is_skipped(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    for version in good:
        operator.promote(version, ANN)
    damage(store, good[1])
    operator.rollback(ROLLOUT)
    assert store.aliases()["champion"] == good[0]


def test_the_baseline_is_there_even_where_its_folder_is_damaged(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, schema: ObservationSchema, good: list[int]
) -> None:
    operator.promote(good[0], ANN)
    (store.path / "versions" / "1" / "manifest.json").write_text("{")
    operator.rollback(ROLLOUT)
    assert serves(router, schema) == (1, "champion")


def test_a_baseline_that_was_promoted_over_a_good_champion_gives_way_and_is_not_quarantined(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    operator.promote(good[0], ANN)
    operator.promote("baseline", ANN)
    operator.rollback(ANN)
    assert store.aliases()["champion"] == good[0]
    assert states(store)[1] == "good"


def test_rolling_back_to_a_version_takes_former_champions_only(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    operator.promote(good[0], ANN)
    operator.promote(good[1], ANN)
    with pytest.raises(ChangeRefused, match="never champion"):
        operator.rollback(ANN, to=good[2])
    assert not operator.rollback(ANN, to=good[1]).changed
    operator.rollback(ANN, to="baseline")
    assert (store.aliases()["champion"], store.aliases()["last-good"]) == (1, good[0])
    assert states(store)[good[1]] == "quarantined"


def test_a_version_that_a_person_rolled_back_can_be_told_from_one_that_a_machine_did(
    operator: PolicyOperator, good: list[int]
) -> None:
    operator.promote(good[0], ROLLOUT)
    operator.rollback(ANN)
    operator.promote(good[1], ROLLOUT)
    operator.rollback(ROLLOUT)
    assert operator.rolled_back_by_hand(good[0])
    assert not operator.rolled_back_by_hand(good[1])
    assert not operator.rolled_back_by_hand(1)
    assert operator.automatic_rollbacks(within_seconds=86_400) == 1


def test_a_version_that_was_quarantined_or_deleted_serves_no_request_that_names_it(
    operator: PolicyOperator, router: PolicyRouter, good: list[int]
) -> None:
    for version in good[:2]:
        router.resolve(Speculation(policy=str(version)))
    operator.quarantine(good[0], ANN)
    with pytest.raises(PolicyRefused, match="quarantined"):
        router.check(Speculation(policy=str(good[0])))
    operator.remove(good[1], ANN)
    with pytest.raises(UnknownPolicy):
        router.check(Speculation(policy=str(good[1])))


def test_a_store_that_cannot_be_read_is_told_without_its_place(
    store: PolicyStore, router: PolicyRouter, good: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable() -> None:
        raise StoreUnavailable(store.path, "registry.db: disk I/O error")

    folder = store.path / "versions" / str(good[0])
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()  # cannot be read, whoever tries
    with pytest.raises(PolicyRefused, match=r"cannot read manifest\.json") as corrupt:
        router.check(Speculation(policy=str(good[0])))
    monkeypatch.setattr(store, "list", unavailable)
    with pytest.raises(PolicyRefused, match="cannot be read") as refused:
        router.check(Speculation(policy=str(good[1])))
    for caught in (corrupt, refused):
        assert str(store.path) not in str(caught.value)


def test_a_pinned_champion_is_moved_by_nobody_until_it_is_unpinned(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    pinned = operator.pin(good[0], ANN)
    assert [event for event, *_ in moves(pinned)] == ["promote", "alias", "pin"]
    assert not operator.pin(good[0], ANN).changed
    assert not operator.promote(good[0], ANN).changed
    for call in (
        lambda: operator.promote(good[1], ROLLOUT),
        lambda: operator.rollback(ROLLOUT),
        lambda: operator.rollback(ANN, to=1),
        lambda: operator.pin(good[1], ANN),
    ):
        with pytest.raises(ChangeRefused, match=r"pinned.*operator:ann.*because.*unpin"):
            call()
    assert store.aliases()["champion"] == good[0]
    assert operator.unpin(ANN).changed
    assert operator.rollback(ROLLOUT).changed


def test_a_pinned_baseline_does_not_follow_a_new_calibration(
    operator: PolicyOperator, store: PolicyStore, table: ActionTable, schema: ObservationSchema
) -> None:
    operator.pin(1, ANN)
    open_policies(store, table, schema, Action(8, 3, 3), rng=np.random.default_rng(0), code_version="0")
    assert store.aliases()["champion"] == 1
    assert store.aliases()["baseline"] != 1


def test_a_dry_run_says_what_would_change_and_changes_nothing(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, good: list[int]
) -> None:
    operator.promote(good[0], ANN)
    archive = store.export(good[0])
    before = store.aliases(), store.flags(), store.audit(), sorted(store.path.rglob("*")), dict(router.serving())
    changes = [
        operator.promote(good[1], DRY),
        operator.rollback(DRY),
        operator.pin(good[1], DRY),
        operator.freeze(DRY),
        operator.remove(good[2], DRY),
        operator.set_candidate(good[2], DRY),
        operator.import_archive(archive, DRY),
    ]
    assert all(change.dry_run and change.changed for change in changes)
    assert {entry.id for change in changes for entry in change.entries} == {0}
    assert moves(changes[1])[0] == ("rollback", "champion", good[0], 1)
    after = store.aliases(), store.flags(), store.audit(), sorted(store.path.rglob("*")), dict(router.serving())
    assert after == before
    with pytest.raises(ChangeRefused, match="in use"):
        operator.remove("champion", DRY)
