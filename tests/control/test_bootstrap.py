from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.starts import BASELINE, Publish, Start, damage, decide, promote

from policy_store import PolicyStore
from respsd.control.action import EAGLE3, OFF, Action
from respsd.control.bootstrap import open_policies
from respsd.control.observation import ObservationSchema
from respsd.engine.request import Speculation
from respsd.errors import PolicyRefused, SettingsError, UnknownPolicy


def test_the_first_start_makes_baseline_and_learner(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    router = start()
    first, second = store.list()
    assert (first.version, first.kind, first.action) == (1, "static", (16, 4, 4))
    assert first.aliases == ("baseline", "champion")
    assert (second.version, second.kind, second.aliases) == (2, "resps", ("learner",))
    decision = decide(router, schema)
    assert (decision.action, decision.arm, decision.policy_version) == (BASELINE, "champion", 1)
    assert store.load(2).manifest.code_version == "0.1.0"


def test_later_starts_change_nothing(start: Start, store: PolicyStore) -> None:
    start()
    before = store.audit()
    start()
    assert store.audit() == before


def test_a_start_after_a_crash_between_two_steps_goes_on(
    start: Start, store: PolicyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "set_alias", die)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert store.aliases() == {}
    start()
    assert store.aliases() == {"baseline": 1, "champion": 1, "learner": 2}


def test_the_champion_can_be_sampled(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    promote(store, publish(0.0, 0.0, 0.0, 0.0))
    assert decide(start(), schema, uniform=0.9).log_prob == 0.0
    assert decide(start(champion_temperature=1.5), schema, uniform=0.9).log_prob == pytest.approx(np.log(1 / 4))


def test_a_stored_champion_serves(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    champion = publish(0.0, 9.0, 0.0, 0.0)
    promote(store, champion)
    decision = decide(start(), schema)
    assert (decision.action, decision.arm, decision.policy_version) == (Action(8, 3, 3), "champion", champion)


def test_a_damaged_champion_is_skipped_for_last_good(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    good, former, champion = publish(0.0, 9.0, 0.0, 0.0), publish(0.0, 0.0, 9.0, 0.0), publish(0.0, 0.0, 0.0, 9.0)
    promote(store, good, "last-good")
    for version in (former, champion):
        promote(store, version)
    damage(store, champion)
    decision = decide(start(), schema)
    assert (decision.policy_version, decision.arm) == (good, "champion")
    assert store.aliases()["champion"] == champion


def test_then_for_the_newest_former_champion_and_never_for_a_version_that_was_none(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    older, former, champion = publish(0.0, 9.0, 0.0, 0.0), publish(0.0, 0.0, 9.0, 0.0), publish(0.0, 0.0, 0.0, 9.0)
    for version in (older, former, champion):
        promote(store, version)
    publish(9.0, 0.0, 0.0, 0.0)  # newest, never champion
    damage(store, champion)
    assert decide(start(), schema).policy_version == former
    store.quarantine(former, actor="test", reason="slow")
    assert decide(start(), schema).policy_version == older
    damage(store, older)
    assert decide(start(), schema).policy_version == 1


def test_a_quarantined_champion_does_not_serve(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    champion = publish(0.0, 0.0, 0.0, 9.0)
    promote(store, champion)
    store.quarantine(champion, actor="test", reason="slow")
    assert decide(start(), schema).policy_version == 1


def test_a_champion_that_was_rolled_back_to_the_baseline_stays_back(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    promote(store, publish(0.0, 0.0, 0.0, 9.0))
    promote(store, 1)
    assert decide(start(), schema).policy_version == 1


def test_a_champion_for_other_observations_is_skipped(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    """The daemon now serves another target."""
    start()
    promote(store, publish(0.0, 0.0, 0.0, 9.0))
    other = replace(schema, feature_width=24)
    router = start(schema=other)
    assert decide(router, other).policy_version == 1
    with pytest.raises(PolicyRefused, match="observations"):
        router.resolve(Speculation(policy="3"))


def test_the_baseline_serves_although_its_folder_is_gone(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    start()
    (store.path / "versions" / "1" / "manifest.json").unlink()
    router = start()
    assert decide(router, schema).action == BASELINE
    with pytest.raises(PolicyRefused):
        router.resolve(Speculation(policy="1"))


def test_another_baseline_action_becomes_a_version_and_takes_the_champion_with_it(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    """First start without a drafter, then with one, then without again: no version is made twice."""
    start(OFF)
    assert decide(start(BASELINE), schema).action == BASELINE
    assert store.aliases() == {"baseline": 3, "champion": 3, "learner": 2}
    assert decide(start(OFF), schema).action == OFF
    assert store.aliases() == {"baseline": 1, "champion": 1, "learner": 2}
    assert len(store.list()) == 3


def test_another_baseline_leaves_a_learned_champion_alone(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    champion = publish(0.0, 9.0, 0.0, 0.0)
    promote(store, champion)
    start(Action(8, 3, 3))
    assert store.aliases()["champion"] == champion


def test_a_version_can_be_named_and_a_quarantined_one_cannot(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    router = start()
    version = publish(0.0, 9.0, 0.0, 0.0)
    decision = decide(router, schema, str(version))
    assert (decision.arm, decision.policy_version, decision.log_prob) == ("named", version, 0.0)
    quarantined = publish(0.0, 9.0, 0.0, 0.0)
    store.quarantine(quarantined, actor="test", reason="slow")
    with pytest.raises(PolicyRefused, match="quarantined"):
        router.resolve(Speculation(policy=str(quarantined)))
    with pytest.raises(UnknownPolicy):
        router.resolve(Speculation(policy="99"))


def test_versions_larger_than_the_engine_can_run_are_refused(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start(Action(32, 5, 8))
    promote(store, publish(0.0, 9.0, 0.0, 0.0))
    router = start(OFF, reserved=Action(16, 4, 4))
    assert decide(router, schema).action == OFF
    with pytest.raises(PolicyRefused, match="32,5,8"):
        router.resolve(Speculation(policy="1"))


def test_a_baseline_that_cannot_run_is_a_setting_to_correct(start: Start) -> None:
    with pytest.raises(SettingsError, match="depth"):
        start(Action(16, 9, 4), reserved=Action(32, 8, 8))


def test_without_a_store_the_built_in_baseline_serves(start: Start, schema: ObservationSchema) -> None:
    router = start(store=None)
    decision = decide(router, schema)
    assert (decision.action, decision.arm, decision.policy_version) == (BASELINE, "champion", None)
    with pytest.raises(PolicyRefused, match="store"):
        router.resolve(Speculation(policy="1"))


def test_a_store_that_fails_leaves_the_built_in_baseline(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    with sqlite3.connect(store.path / "registry.db") as connection:
        connection.execute("DROP TABLE versions")
    connection.close()
    assert decide(start(), schema).action == BASELINE


def test_the_paper_table_starts_with_a_baseline_outside_it(tmp_path: Path) -> None:
    from respsd.control.action import paper_table

    schema = ObservationSchema(feature_width=12)
    with PolicyStore(tmp_path / "policies") as store:
        router = open_policies(store, paper_table(), schema, EAGLE3, rng=np.random.default_rng(0), code_version="0.1.0")
        assert decide(router, schema).action == EAGLE3
        assert decide(router, schema, "learner").action in paper_table().actions


def test_the_default_can_be_another_alias_or_a_version(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    version = publish(0.0, 9.0, 0.0, 0.0)
    assert decide(start(default="learner"), schema).arm == "learner"
    assert decide(start(default=str(version)), schema).policy_version == version


def test_a_default_that_nobody_knows_is_a_setting_to_correct(start: Start) -> None:
    with pytest.raises(SettingsError, match=r"control.policy.*lerner"):
        start(default="lerner")


def test_a_default_that_cannot_serve_leaves_the_champion(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    version = publish(0.0, 9.0, 0.0, 0.0)
    damage(store, version)
    assert decide(start(default=str(version)), schema).arm == "champion"
    assert decide(start(store=None, default="learner"), schema).action == BASELINE


def test_eagle3s_default_has_a_name_where_the_engine_can_run_it(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    router = start(reserved=Action(60, 7, 10))
    decision = decide(router, schema, "eagle3")
    assert (decision.action, decision.arm, decision.policy_version) == (EAGLE3, "eagle3", 3)
    start(reserved=Action(60, 7, 10))
    assert [(each.version, each.action) for each in store.list()][2:] == [(3, (60, 7, 10))]


def test_eagle3_may_be_the_baseline_itself(start: Start, store: PolicyStore, schema: ObservationSchema) -> None:
    router = start(EAGLE3)
    assert store.aliases() == {"baseline": 1, "champion": 1, "eagle3": 1, "learner": 2}
    assert decide(router, schema).arm == "champion"


def test_eagle3_is_unknown_where_memory_is_kept_for_smaller_trees_only(start: Start) -> None:
    with pytest.raises(UnknownPolicy):
        start(reserved=Action(59, 7, 10)).resolve(Speculation(policy="eagle3"))
