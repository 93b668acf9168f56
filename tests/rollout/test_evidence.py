from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.rollouts import CANDIDATE, RolloutRig, make_rollout

from respsd.errors import StorageError
from respsd.experience.database import OpenLog, open_log
from respsd.rollout import evidence
from respsd.rollout.budget import DAY_NS, AlphaBudget
from respsd.rollout.evidence import EvidenceLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transitions.db"


def rig(path: Path, settings: str = "settings", **values: object) -> RolloutRig:
    made = make_rollout(EvidenceLog(lambda: open_log(path), settings), **values)
    made.propose()
    return made


def test_a_new_process_goes_on_where_the_last_one_was(path: Path) -> None:
    before = rig(path, ramp=(0.1, 0.5), gate_pairs=2)
    before.observe(0.05, times=5)
    after = rig(path, ramp=(0.1, 0.5), gate_pairs=2)
    assert after.rollout.status().rounds == before.rollout.status().rounds
    assert after.rollout.status().rounds[0].pairs == 5
    assert after.rollout.status().rounds[0].stage == 2


def test_evidence_of_other_engine_settings_is_not_gone_on_from(path: Path) -> None:
    rig(path).observe(0.05, times=5)
    assert rig(path, "others").rollout.status().rounds[0].pairs == 0


def test_a_decided_round_is_not_resumed_and_its_cool_down_is_kept(path: Path) -> None:
    rig(path, cooldown_seconds=600).trip()
    again = rig(path, cooldown_seconds=600)
    assert again.rollout.status().waiting == "a pause after a rollback"
    again.clock.pass_seconds(601)
    again.rollout.pump()
    assert again.rollout.status().rounds[0].pairs == 0


def test_the_days_error_probability_is_remembered(path: Path) -> None:
    alphas = []
    for _ in range(8):
        one = rig(path, cooldown_seconds=0)
        alphas.append(one.rollout.status().rounds[0].alpha)
        one.trip()
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[0] == 0.01
    assert alphas[-1] < 0.005
    assert sum(alphas) <= 0.05


def counted(path: Path, table: str) -> int:
    with open_log(path).engine.begin() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def decide_rounds(one: RolloutRig, rounds: int, seconds: float) -> None:
    """Evaluate that many candidates, two pairs each, at that distance, and propose one more."""
    for version in range(10, 10 + rounds):
        one.observe(0.1, times=2)
        one.trip()
        one.clock.pass_seconds(seconds)
        one.propose(version)


def test_old_rounds_are_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "KEPT_ROUNDS", 3)
    one = rig(path, cooldown_seconds=0, rollbacks_per_day=100)
    decide_rounds(one, 6, 86_400)
    assert counted(path, "rollout_rounds") == 3
    assert counted(path, "rollout_pairs") == 4


def test_rounds_whose_error_probability_still_counts_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "KEPT_ROUNDS", 1)
    one = rig(path, cooldown_seconds=0, rollbacks_per_day=100)
    decide_rounds(one, 6, 3600)
    assert counted(path, "rollout_rounds") == 7
    spent = EvidenceLog(lambda: open_log(path), "settings").spent(one.clock.time_ns() - DAY_NS, evaluations=True)
    assert len(spent) == 7


def test_a_round_that_still_runs_stays_and_is_added_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holdout may run for longer than many evaluations take."""
    monkeypatch.setattr(evidence, "KEPT_ROUNDS", 1)
    one = rig(path, cooldown_seconds=0, rollbacks_per_day=100, holdout_baseline=0.1)
    decide_rounds(one, 4, 86_400)
    one.trip()  # holdouts go on between evaluations
    with capture_logs() as logs:
        one.observe(0.1, times=2, kind="baseline")
    assert [line["event"] for line in logs] == []
    assert counted(path, "rollout_rounds") == 2
    again = rig(path, cooldown_seconds=0, holdout_baseline=0.1)
    assert {each.kind: each.pairs for each in again.rollout.status().rounds}["baseline"] == 2


def test_a_log_that_fails_costs_the_memory_and_nothing_else() -> None:
    def fail() -> OpenLog:
        raise StorageError("the disk is on fire")

    one = make_rollout(EvidenceLog(fail, "settings"))
    one.propose()
    one.trip()
    assert one.made() == [("quarantine", CANDIDATE)]


def test_the_budget_never_runs_out_and_never_overspends() -> None:
    budget = AlphaBudget(0.01, 0.05)
    parts = [budget.take(number) for number in range(50)]
    assert parts[:4] == [0.01] * 4
    assert min(parts) > 0
    assert sum(parts) <= 0.05 + 50 * 1e-9
    assert budget.take(2 * DAY_NS) == 0.01
