"""The learner as a start finds it, makes it, or replaces it."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs
from support.starts import Publish, Start, damage, decide, promote

from policy_store import ManifestDraft, PolicyStore, StoreUnavailable
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.observation import ObservationSchema
from respsd.control.prior import calibrated_log_probs
from respsd.engine.request import Speculation
from respsd.errors import UnknownPolicy


def test_the_learner_is_sampled_at_temperature_one(start: Start, schema: ObservationSchema, table: ActionTable) -> None:
    router = start()
    drawn = [decide(router, schema, "learner", uniform) for uniform in (0.1, 0.4, 0.6, 0.9)]
    assert [decision.action_index for decision in drawn] == [0, 1, 2, 3]  # fresh weights are nearly uniform
    assert drawn[0].log_prob == pytest.approx(np.log(1 / len(table)), abs=0.1)
    assert drawn[0].arm == "learner"


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
