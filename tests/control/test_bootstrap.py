from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from policy_store import ManifestDraft, PolicyStore, StoreUnavailable
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.control.bootstrap import open_policies
from respsd.control.controller import Decision
from respsd.control.observation import ObservationSchema
from respsd.control.prior import calibrated_log_probs
from respsd.control.router import PolicyRouter
from respsd.engine.request import Speculation
from respsd.errors import PolicyRefused, SettingsError, UnknownPolicy

BASELINE = Action(16, 4, 4)
Publish = Callable[..., int]


@pytest.fixture
def start(store: PolicyStore, table: ActionTable, schema: ObservationSchema) -> Callable[..., PolicyRouter]:
    """Starts a daemon on the store, as often as called."""

    def open_again(baseline: Action = BASELINE, **changes: object) -> PolicyRouter:
        arguments: dict[str, object] = {
            "store": store,
            "table": table,
            "schema": schema,
            "rng": np.random.default_rng(0),
            "code_version": "0.1.0",
        }
        return open_policies(baseline_action=baseline, **(arguments | changes))  # type: ignore[arg-type]

    return open_again


Start = Callable[..., PolicyRouter]


def decide(
    router: PolicyRouter, schema: ObservationSchema, policy: str | None = None, uniform: float = 0.5
) -> Decision:
    controller = router.resolve(Speculation(policy=policy)).current()
    return controller.choose(np.zeros(schema.width, np.float32), uniform)


def damage(store: PolicyStore, version: int) -> None:
    (store.path / "versions" / str(version) / "policy.safetensors").write_bytes(b"")


def promote(store: PolicyStore, version: int, alias: str = "champion") -> None:
    store.set_alias(alias, version, actor="test", reason="test")


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


def test_the_learner_is_sampled_at_temperature_one(start: Start, schema: ObservationSchema, table: ActionTable) -> None:
    router = start()
    drawn = [decide(router, schema, "learner", uniform) for uniform in (0.1, 0.4, 0.6, 0.9)]
    assert [decision.action_index for decision in drawn] == [0, 1, 2, 3]  # fresh weights are nearly uniform
    assert drawn[0].log_prob == pytest.approx(np.log(1 / len(table)), abs=0.1)
    assert drawn[0].arm == "learner"


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


def test_a_learner_for_other_observations_gives_way_to_a_new_one_and_goes_on_when_they_come_back(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    """The daemon serves another target for a while."""
    start()
    trained = publish(0.0, 0.0, 0.0, 9.0)
    promote(store, trained, "learner")
    other = replace(schema, projection=7)
    with capture_logs() as logs:
        decision = decide(start(schema=other), other, "learner")
    fresh = store.aliases()["learner"]
    assert (decision.arm, decision.policy_version) == ("learner", fresh)
    assert fresh > trained
    said = next(line for line in logs if line["event"] == "learner_replaced")
    assert (said["version"], said["instead"]) == (trained, fresh)
    assert "observations" in store.audit()[-1].reason
    assert decide(start(), schema, "learner").policy_version == trained
    assert decide(start(schema=other), other, "learner").policy_version == fresh
    assert store.list()[-1].version == fresh


def test_a_learner_whose_table_is_too_large_gives_way_to_a_new_one(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    start(log_speeds=[0.0, 0.5, 0.2, -1.0])
    small = ActionTable((OFF, Action(8, 3, 3)))
    decision = decide(start(OFF, table=small, log_speeds=[0.0, 0.5]), schema, "learner", 0.99)
    assert decision.action == Action(8, 3, 3)
    assert decision.policy_version == store.aliases()["learner"] > 2


def test_learning_goes_on_from_the_newest_former_learner_that_is_not_damaged(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    older, newer, newest = (publish(0.0, 0.0, 0.0, best) for best in (1.0, 2.0, 3.0))
    for version in (older, newer, newest):
        promote(store, version, "learner")
    publish(9.0, 0.0, 0.0, 0.0)  # newest of all, and never the learner
    damage(store, newest)
    shutil.rmtree(store.path / "versions" / str(newer))
    assert decide(start(), schema, "learner").policy_version == older
    assert store.aliases()["learner"] == older


def test_a_former_learner_without_the_estimates_that_there_are_now_is_not_gone_on_from(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    trained = publish(0.0, 0.0, 0.0, 1.0)
    promote(store, trained, "learner")
    damage(store, trained)
    learner = decide(start(log_speeds=[0.0, 0.5, 0.2, -1.0]), schema, "learner").policy_version
    assert learner is not None
    assert learner > trained


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


def test_a_learner_that_cannot_be_stored_costs_the_learner_alone(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion = publish(0.0, 9.0, 0.0, 0.0)
    promote(store, champion)
    create = store.create

    def full_disk(draft: ManifestDraft, *arguments: object, **keywords: object) -> int:
        if draft.kind == "resps":
            raise StoreUnavailable(store.path, "No space left on device")
        return create(draft, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "create", full_disk)
    router = start()
    assert decide(router, schema).policy_version == champion
    with pytest.raises(UnknownPolicy):
        router.resolve(Speculation(policy="learner"))
    assert decide(start(default="learner"), schema).policy_version == champion


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


def test_the_first_learner_starts_from_calibrated_speeds(
    start: Start, store: PolicyStore, schema: ObservationSchema
) -> None:
    speeds = [math.log(speed) for speed in (40.0, 60.0, 50.0, 20.0)]
    router = start(log_speeds=speeds)
    decisions = [decide(router, schema, "learner", uniform) for uniform in np.linspace(0.0, 0.999, 200)]
    expected = dict(enumerate(calibrated_log_probs(speeds)))
    for decision in decisions:
        assert decision.action_index is not None
        # Random weights behind a small gain move it a little.
        assert decision.log_prob == pytest.approx(expected[decision.action_index], abs=0.1)
    assert {decision.action_index for decision in decisions} == {0, 1, 2, 3}
    assert "entropy" in store.list()[1].note


def test_a_learner_that_was_made_before_calibration_is_made_anew_and_one_that_learnt_is_not(
    start: Start, store: PolicyStore, publish: Publish
) -> None:
    speeds = [0.0, 0.5, 0.2, -1.0]
    start()
    start(log_speeds=speeds)
    assert store.aliases()["learner"] == 3
    start(log_speeds=[0.0, 0.0, 0.0, 0.0])
    assert store.aliases()["learner"] == 3
    trained = publish(0.0, 1.0, 2.0, 3.0)
    promote(store, trained, "learner")
    start(log_speeds=speeds)
    assert store.aliases()["learner"] == trained


def test_the_learner_explores_at_the_temperature_that_is_set(
    start: Start, store: PolicyStore, publish: Publish, schema: ObservationSchema
) -> None:
    start()
    promote(store, publish(0.0, 0.0, 0.0, 2.0), "learner")
    for temperature in (1.0, 2.0):
        decision = decide(start(exploration_temperature=temperature), schema, "learner", 0.999)
        best = math.exp(2.0 / temperature)
        assert decision.log_prob == pytest.approx(math.log(best / (best + 3)))
