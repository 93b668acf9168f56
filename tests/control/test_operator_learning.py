"""The operator: learners, candidates and imports, and what happens beside full disks and other threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from support.operating import ANN, DRY, ROLLOUT, NoonClock, damage, moves, serves

from policy_store import HistoryQuery, ManifestDraft, PolicyStore, StoreUnavailable
from policy_store.archive import read_archive, write_archive
from respsd.control.action import Action, ActionTable
from respsd.control.bootstrap import open_policies, policy_loader
from respsd.control.manifests import static_manifest
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.control.policy_change import Intent
from respsd.control.router import PolicyRouter
from respsd.engine.request import Speculation
from respsd.errors import ArchiveInvalid, ChangeRefused, PolicyRefused, StorageError, UnknownPolicy

BASELINE = Action(16, 4, 4)


def test_automatic_rollbacks_are_counted_within_the_time_asked_for(
    store: PolicyStore, operator: PolicyOperator, good: list[int]
) -> None:
    operator.quarantine(good[0], ROLLOUT)
    operator.quarantine(good[1], ANN)

    class Later(NoonClock):
        def time_ns(self) -> int:
            return super().time_ns() + 100 * 10**9

    operator._clock = Later()
    assert operator.automatic_rollbacks(within_seconds=101) == 1
    assert operator.automatic_rollbacks(within_seconds=99) == 0


def test_frozen_learning_takes_no_learner_candidate_or_training(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    started: list[bool] = []
    operator.train = lambda *, actor, reason, dry_run: (started.append(dry_run), "update 7 started")[1]
    assert operator.train_now(ANN) == "update 7 started"
    operator.freeze(Intent("rollout", "three rollbacks in a day"))
    for call in (
        lambda: operator.set_learner(good[0], ANN),
        lambda: operator.set_candidate(good[0], ANN),
        lambda: operator.train_now(ANN),
    ):
        with pytest.raises(ChangeRefused, match="three rollbacks in a day"):
            call()
    assert operator.promote(good[0], ANN).changed  # by hand, policies still move
    operator.unfreeze(ANN)
    assert operator.set_learner(good[0], ANN).changed
    assert started == [False]


def test_without_a_scheduler_nothing_can_be_trained(operator: PolicyOperator) -> None:
    with pytest.raises(ChangeRefused, match="no scheduler"):
        operator.train_now(ANN)


def test_a_quarantined_candidate_is_none_but_the_learner_goes_on_from_it(
    operator: PolicyOperator,
    store: PolicyStore,
    router: PolicyRouter,
    table: ActionTable,
    schema: ObservationSchema,
    good: list[int],
) -> None:
    operator.set_learner(good[0], ROLLOUT)
    operator.set_candidate(good[0], ROLLOUT)
    operator.quarantine("candidate", ROLLOUT)
    assert "candidate" not in store.aliases()
    with pytest.raises(UnknownPolicy):
        serves(router, schema, "candidate")
    assert serves(router, schema, "learner") == (good[0], "learner")
    restarted = open_policies(store, table, schema, BASELINE, rng=np.random.default_rng(0), code_version="0")
    assert serves(restarted, schema, "learner") == (good[0], "learner")
    with pytest.raises(PolicyRefused):
        restarted.resolve(Speculation(policy=str(good[0])))


def test_a_withdrawn_candidate_is_forgotten_and_a_request_under_way_with_it_goes_on_with_the_champion(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, schema: ObservationSchema, good: list[int]
) -> None:
    nominated = operator.nominate(good[0], ANN)
    assert moves(nominated) == [("alias", "candidate", None, good[0])]
    assert (nominated.entries[0].actor, nominated.entries[0].reason) == ("operator:ann", "because")
    under_way = router.resolve(Speculation(policy="candidate"))
    assert under_way.current().version == good[0]
    assert moves(operator.withdraw(DRY)) == [("alias", "candidate", good[0], None)]
    assert store.aliases()["candidate"] == good[0]
    assert moves(operator.withdraw(ANN)) == [("alias", "candidate", good[0], None)]
    assert not operator.withdraw(ANN).changed
    assert "candidate" not in router.serving()
    with pytest.raises(UnknownPolicy):
        router.resolve(Speculation(policy="candidate"))
    assert under_way.current().version == 1
    assert operator.nominate("learner", ANN).changed  # another may stand, by its alias too
    assert serves(router, schema, "candidate") == (2, "candidate")


def test_a_nomination_that_could_not_be_evaluated_is_refused_with_the_reason(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, good: list[int]
) -> None:
    operator.quarantine(good[2], ANN)
    before = store.audit()
    with pytest.raises(PolicyRefused, match=f"version {good[2]} is refused: it is quarantined"):
        operator.nominate(good[2], ANN)
    with pytest.raises(UnknownPolicy, match="404"):
        operator.nominate(404, ANN)
    with pytest.raises(ChangeRefused, match="version 1 is the champion already"):
        operator.nominate("champion", ANN)
    damage(store, good[1])
    with pytest.raises(PolicyRefused, match="hash"):
        operator.nominate(good[1], ANN)
    assert moves(operator.nominate(good[0], DRY)) == [("alias", "candidate", None, good[0])]
    assert store.audit() == before
    assert "candidate" not in router.serving()

    operator.pin(1, Intent("operator:bob", "demo day"))
    with pytest.raises(ChangeRefused, match=r"version 1 is pinned as the champion by operator:bob \(demo day\); unpin"):
        operator.nominate(good[0], ANN)
    operator.unpin(ANN)
    operator.freeze(Intent("operator:bob", "odd traffic"))
    with pytest.raises(ChangeRefused, match=r"learning is frozen \(odd traffic\); unfreeze it first"):
        operator.nominate(good[0], ANN)
    operator.unfreeze(ANN)
    assert operator.nominate(good[0], ANN).changed
    assert not operator.nominate(good[0], ANN).changed


def test_champion_and_baseline_are_not_quarantined_and_last_good_moves_on(
    operator: PolicyOperator, store: PolicyStore, good: list[int]
) -> None:
    for version in good:
        operator.promote(version, ANN)
    for name in ("champion", "baseline"):
        with pytest.raises(ChangeRefused, match=name):
            operator.quarantine(name, ANN)
    operator.quarantine("last-good", ANN)
    assert store.aliases()["last-good"] == good[0]


def test_an_import_must_be_able_to_serve_on_this_engine(
    operator: PolicyOperator, store: PolicyStore, good: list[int], schema: ObservationSchema
) -> None:
    archive = store.export(good[0])
    change = operator.import_archive(archive, ANN)
    (entry,) = change.entries
    assert (entry.event, entry.to_version, entry.actor) == ("import", good[-1] + 1, "operator:ann")
    assert operator.promote(good[-1] + 1, ANN).changed

    def imported(draft: ManifestDraft) -> None:
        with PolicyStore(store.path.parent / "other") as other:
            version = other.create(draft, store.load(good[0]).weights if draft.kind == "resps" else None, actor="x")
            operator.import_archive(other.export(version), ANN)

    draft = read_archive(archive).draft()
    assert draft.golden is not None
    versions = store.list()
    with pytest.raises(ArchiveInvalid, match="golden"):
        imported(replace(draft, golden=replace(draft.golden, logits=(9.0, 9.0, 9.0, 9.0))))
    with pytest.raises(ArchiveInvalid, match="observations"):
        imported(replace(draft, observation_schema={**schema.to_dict(), "fingerprint": "beef"}))
    with pytest.raises(ArchiveInvalid, match="limit for total_tokens"):
        imported(static_manifest(Action(10**6, 8, 8), code_version="0", note=""))
    with pytest.raises(ArchiveInvalid, match="zip"):
        operator.import_archive(b"PK\3\4", ANN)
    with pytest.raises(ArchiveInvalid, match="only"):
        operator.import_archive(write_archive({"../evil": b""}), ANN)
    assert store.list() == versions


def test_a_full_disk_refuses_a_promotion_but_a_rollback_serves_at_once(
    operator: PolicyOperator,
    store: PolicyStore,
    router: PolicyRouter,
    schema: ObservationSchema,
    good: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator.promote(good[0], ANN)

    def full(*_: object, **__: object) -> None:
        raise StoreUnavailable(store.path, "registry.db: database or disk is full")

    monkeypatch.setattr("policy_store.change.registry.move_alias", full)
    with pytest.raises(StorageError, match="full"):
        operator.promote(good[1], ANN)
    assert serves(router, schema) == (good[0], "champion")
    with pytest.raises(StorageError, match=r"version 1 serves.*full"):
        operator.rollback(ROLLOUT)
    assert serves(router, schema) == (1, "champion")
    assert store.aliases()["champion"] == good[0]


def test_threads_that_promote_at_once_leave_registry_and_router_agreeing(
    operator: PolicyOperator, store: PolicyStore, router: PolicyRouter, good: list[int]
) -> None:
    def promote(version: int) -> None:
        for _ in range(5):
            operator.promote(version, Intent(f"thread {version}"))

    threads = [threading.Thread(target=promote, args=(version,)) for version in good]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    aliases = store.aliases()
    assert {name: router.serving()[name] for name in ("champion", "last-good")} == {
        name: aliases[name] for name in ("champion", "last-good")
    }
    entries = store.history(HistoryQuery(alias="champion"))
    assert [entry.from_version for entry in entries[1:]] == [entry.to_version for entry in entries[:-1]]


def test_an_empty_store_has_no_champion_to_roll_back(
    store: PolicyStore, table: ActionTable, schema: ObservationSchema
) -> None:
    class Nobody:
        def swap(self, alias: str, controller: object) -> None: ...

        def forget(self, alias: str) -> None: ...
        def forget_named(self) -> None: ...

        def serving(self) -> dict[str, int | None]:
            return {}

    operator = PolicyOperator(store, policy_loader(store, schema, table.largest, None), Nobody(), NoonClock())  # type: ignore[arg-type]
    with pytest.raises(ChangeRefused, match="no champion"):
        operator.rollback(ANN)
    store.create(static_manifest(BASELINE, code_version="0", note=""), actor="test")
    with pytest.raises(ChangeRefused, match="no baseline"):
        operator.promote(1, ANN)
