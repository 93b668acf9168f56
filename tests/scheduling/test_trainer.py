from __future__ import annotations

from types import SimpleNamespace

from support.rollouts import MemoryPolicies, make_rollout

from respsd.control.action import Action
from respsd.control.policy_change import Intent
from respsd.scheduling import trainer
from respsd.tuning.baseline_speed import SpeedPoint
from respsd.tuning.report import UpdateReport

BASELINE = Action(16, 4, 4)


class Operator:
    """Notes what it is asked to serve."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def set_learner(self, version: int, intent: Intent) -> None:
        assert intent.actor == trainer.ACTOR
        self.done.append(("learner", version))

    def set_candidate(self, version: int, intent: Intent) -> None:
        self.done.append(("candidate", version))


def published(*, is_evaluating: bool = False, **report: object) -> list[tuple[str, int]]:
    operator = Operator()
    stored = UpdateReport(status="stored", version=7, **report)  # type: ignore[arg-type]
    trainer._publish(operator, 7, stored, lambda: is_evaluating)  # type: ignore[arg-type]
    return operator.done


def test_a_stored_version_becomes_the_learner_and_a_candidate_only_where_its_report_says_so() -> None:
    assert published() == [("learner", 7)]
    assert published(candidate=True) == [("learner", 7), ("candidate", 7)]


def test_steady_updates_leave_the_candidate_that_is_being_evaluated_alone() -> None:
    """Else none would ever be evaluated to the end, and the day's error probability would be spent on beginnings."""
    policies, operator = MemoryPolicies(), Operator()
    rig = make_rollout(policies=policies)

    def update(version: int) -> None:
        report = UpdateReport(status="stored", version=version, candidate=True)
        trainer._publish(operator, version, report, lambda: rig.rollout.status().is_evaluating)  # type: ignore[arg-type]
        policies.aliases["candidate"] = dict(operator.done)["candidate"]
        rig.rollout.pump()

    for version in (10, 11, 12):
        update(version)
    assert operator.done == [("learner", 10), ("candidate", 10), ("learner", 11), ("learner", 12)]
    assert [each.subject_version for each in rig.rollout.status().rounds] == [10]
    rig.trip()
    update(13)
    assert operator.done[-2:] == [("learner", 13), ("candidate", 13)]


def test_calibrated_speeds_are_the_baselines_at_several_lengths_and_batches() -> None:
    model = SimpleNamespace(tokens_per_second=lambda action, context, batch: 1000.0 * batch / context)
    points = trainer.calibrated_speeds(SimpleNamespace(model=model), lambda _: BASELINE, 8)  # type: ignore[arg-type]
    assert {(point.context_length, point.batch_size) for point in points} == {
        (context, batch) for context in (64, 256, 1024, 4096) for batch in (1, 4, 8)
    }
    assert SpeedPoint(64, 4, 62.5) in points
    assert trainer.calibrated_speeds(None, lambda _: BASELINE, 8) == ()
    one_at_a_time = trainer.calibrated_speeds(SimpleNamespace(model=model), lambda _: BASELINE, 1)  # type: ignore[arg-type]
    assert len(one_at_a_time) == 4
