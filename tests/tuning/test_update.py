from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tuning.conftest import SCHEMA, TABLE, Workshop

from respsd.control.action import Action
from respsd.control.loader import PolicyLoader
from respsd.settings_learning import LearningSettings
from respsd.tuning import update
from respsd.tuning.experience import LoggedExperience
from respsd.tuning.lineage import learner_watermark, watermark_of
from respsd.tuning.ppo_update import TrainingFigures
from respsd.tuning.report import UpdateReport
from respsd.tuning.update import UpdateContext, update_learner

Filled = Callable[..., Workshop]
FAST = LearningSettings(learning_rate=3e-3, batch_size=32, min_held_out_windows=5, max_kl=1.0, entropy_coefficient=0.01)


def train(workshop: Workshop, settings: LearningSettings = FAST, **changes: object) -> UpdateReport:
    context = UpdateContext(workshop.store, LoggedExperience(workshop.log), settings, 0, "0")
    report = update_learner(replace(context, **changes))  # type: ignore[arg-type]
    if report.version is not None:
        workshop.store.set_alias("learner", report.version, actor="test", reason="update")
    return report


def probabilities(workshop: Workshop) -> np.ndarray:
    controller = PolicyLoader(workshop.store, SCHEMA, Action(32, 5, 8), {}).controller(
        workshop.store.resolve("learner"), "learner"
    )
    logits = controller._network.logits(np.zeros(SCHEMA.width, np.float32))  # type: ignore[attr-defined]
    return np.exp(logits) / np.exp(logits).sum()


def test_the_faster_action_becomes_more_probable(filled: Filled) -> None:
    workshop = filled(60)
    before = probabilities(workshop)
    report = train(workshop)
    assert (report.status, report.parent, report.version) == ("stored", 2, 3)
    after = probabilities(workshop)
    assert after[2] > before[2] + 0.02
    assert after.argmax() == 2


def test_rounds_of_traffic_and_updates_settle_on_it_and_make_a_candidate(filled: Filled) -> None:
    workshop = filled(40, arm="champion", faster=None)
    for _ in range(8):
        filled(30)
        report = train(workshop)
        assert report.status == "stored"
    assert probabilities(workshop)[2] > 0.8
    assert report.candidate, report.candidate_reason
    assert report.baseline_source == "baseline windows"
    value = report.held_out["new_greedy"]
    assert value is not None
    assert value["low"] < np.log(2) < value["high"]  # twice as fast as the baseline


def test_the_version_tells_its_rows_and_its_report(filled: Filled) -> None:
    workshop = filled(20)
    report = train(workshop)
    stored = workshop.store.load(3).manifest
    assert stored.parent == 2
    assert stored.training_window is not None
    assert watermark_of(stored.training_window) == LoggedExperience(workshop.log).newest()
    assert learner_watermark(workshop.store).request_row == 20
    kept = UpdateReport.from_dict(stored.training_window["report"])  # type: ignore[arg-type]
    assert kept == replace(report, version=None, seconds=0.0)
    assert (report.windows_used, report.windows_held_out, report.windows_left_out) == (80, 20, {})
    for figure in (report.effective_share, report.kl, report.clip_share, report.entropy, report.value_loss):
        assert figure is not None
    assert stored.normaliser is not None
    assert "value_net.weight" in workshop.store.load(3).weights


def test_rows_are_used_once(filled: Filled) -> None:
    workshop = filled(20)
    train(workshop)
    again = train(workshop)
    assert (again.status, again.reason) == ("refused", "too_few_windows")
    filled(10)
    assert train(workshop).windows_used == 40  # two of the ten requests are held out


def test_less_than_a_minibatch_is_refused_and_kept_for_the_next_update(filled: Filled) -> None:
    workshop = filled(9)  # eight of them to train on, with five windows each
    report = train(workshop, FAST.model_copy(update={"batch_size": 41}))
    assert (report.status, report.reason) == ("refused", "too_few_windows")
    assert report.detail == "there are 40 new windows, and a minibatch (learning.batch_size) takes 41"
    assert train(workshop, FAST.model_copy(update={"batch_size": 40})).windows_used == 40


def test_rows_of_old_versions_are_left_out(filled: Filled) -> None:
    workshop = filled(20)
    stale = workshop.store.load(2)
    for _ in range(2):  # two more versions, of which the rows below know nothing
        draft = replace(workshop.store.load("learner").manifest, parent=workshop.store.resolve("learner"))
        fields = {name: getattr(draft, name) for name in type(draft).__mro__[1].__dataclass_fields__}
        version = workshop.store.create(type(draft).__mro__[1](**fields), stale.weights, actor="test")
        workshop.store.set_alias("learner", version, actor="test", reason="test")
    report = train(workshop, FAST.model_copy(update={"max_version_lag": 1}))
    assert (report.status, report.reason) == ("refused", "too_few_windows")
    assert report.windows_left_out == {"too_old": 80}
    assert train(workshop, FAST.model_copy(update={"max_version_lag": 2})).status == "stored"


def test_windows_whose_probability_is_not_the_learners_are_left_out(filled: Filled) -> None:
    workshop = filled(20)
    engine = workshop.writer._opened().engine
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE transitions SET log_prob = log_prob - 1 WHERE request_row <= 10")
    report = train(workshop)
    assert (report.windows_used, report.windows_left_out) == (40, {"log_ratio": 40})
    filled(10)
    nothing_left = train(workshop, FAST.model_copy(update={"max_log_ratio": 1e-30}))
    assert (nothing_left.status, nothing_left.reason) == ("refused", "off_policy")


def test_too_few_effective_windows_refuse_the_update(filled: Filled) -> None:
    workshop = filled(20)
    engine = workshop.writer._opened().engine
    with engine.begin() as connection:  # as if half of the actions had been drawn with twice their probability
        connection.exec_driver_sql("UPDATE transitions SET log_prob = log_prob + 0.69 WHERE id % 2 = 0")
    settings = FAST.model_copy(update={"min_effective_share": 0.95})
    report = train(workshop, settings)
    assert (report.status, report.reason) == ("refused", "effective_sample_size")
    assert report.effective_share == pytest.approx(0.9, abs=0.02)  # (1 + 1/2)**2 / (2 * (1 + 1/4))
    assert report.version is None


def test_a_policy_that_moves_too_far_is_refused(filled: Filled) -> None:
    workshop = filled(40)
    report = train(workshop, FAST.model_copy(update={"max_kl": 1e-6}))
    assert (report.status, report.reason) == ("refused", "kl")
    assert workshop.store.resolve("learner") == 2
    assert len(workshop.store.list()) == 2


@pytest.mark.parametrize(
    ("reason", "loss", "weight"), [("loss_not_finite", np.nan, 0.0), ("weights_not_finite", 0.0, np.inf)]
)
def test_results_that_are_no_numbers_are_refused(
    filled: Filled, monkeypatch: pytest.MonkeyPatch, reason: str, loss: float, weight: float
) -> None:
    def broken(ppo: object, *_: object) -> TrainingFigures:
        ppo.policy.action_net.bias.data[0] += weight  # type: ignore[attr-defined]
        return TrainingFigures(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, loss)

    monkeypatch.setattr(update, "train", broken)
    report = train(filled(10))
    assert (report.status, report.reason) == ("refused", reason)


def test_without_a_learner_there_is_nothing_to_train(workshop: Workshop) -> None:
    workshop.record()
    workshop.store.set_alias("learner", 1, actor="test", reason="a constant")
    report = train(workshop)
    assert (report.status, report.reason) == ("refused", "no_learner")


def test_a_truncated_window_counts_by_its_steps(filled: Filled) -> None:
    """Windows of one step that say the opposite do not outweigh whole ones."""
    workshop = filled(60)
    for _ in range(60):
        workshop.record(faster=0, steps=1, truncated=True, committed_tokens=3, draft_ns=10**8, verify_ns=0, other_ns=0)
    before = probabilities(workshop)
    assert train(workshop).status == "stored"
    assert probabilities(workshop)[2] > before[2]


def test_the_same_seed_gives_the_same_version(filled: Filled) -> None:
    workshop = filled(20)
    first = train(workshop)
    workshop.store.set_alias("learner", 2, actor="test", reason="again")
    second = train(workshop)
    assert first.version is not None
    assert second.version is not None
    one, two = workshop.store.load(first.version).weights, workshop.store.load(second.version).weights
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_the_table_of_the_learner_decides_not_todays(filled: Filled) -> None:
    workshop = filled(20)
    assert train(workshop).status == "stored"
    assert workshop.store.load("learner").manifest.action_table == tuple(
        (a.total_tokens, a.depth, a.top_k) for a in TABLE
    )
