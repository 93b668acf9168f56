from __future__ import annotations

from random import Random

import pytest

from respsd.errors import SettingsError
from respsd.rollout.judge import JudgeSettings
from respsd.rollout.noise import Noise, read_noise, write_noise
from respsd.rollout.pairing import Measured
from respsd.rollout.simulation import Scenario, simulate


@pytest.fixture(scope="module")
def noise() -> Noise:
    """Requests of 8 windows whose tokens scatter by 15 % and whose speeds differ twofold."""
    rng = Random(0)
    requests = []
    for _ in range(60):
        ns = 10**9 * rng.uniform(1.0, 2.0)
        windows = (
            Measured(9, max(3, round(rng.gauss(200, 30))), round(ns * rng.uniform(0.95, 1.05))) for _ in range(8)
        )
        requests.append(tuple(windows))
    return Noise({"persistence": 10}, tuple(requests))


@pytest.mark.parametrize("scenario", list(Scenario))
def test_equal_policies_are_hardly_ever_rolled_back(noise: Noise, scenario: Scenario) -> None:
    """An error probability of 1 % a run: more than 4 of 100 would be a four in a thousand accident."""
    summary = simulate(noise, JudgeSettings(max_pairs=150), runs=100, effect=0.0, scenario=scenario)
    assert summary.wrong_rollback_rate <= 0.04
    assert summary.found_rate is None


@pytest.mark.parametrize(("effect", "requests"), [(-0.1, 50), (-0.3, 12)])
def test_slower_policies_are_found_soon(noise: Noise, effect: float, requests: int) -> None:
    summary = simulate(noise, JudgeSettings(), runs=40, effect=effect)
    assert summary.found_rate == 1.0
    assert summary.median_requests is not None
    assert summary.median_requests <= requests


def test_a_faster_policy_is_promoted(noise: Noise) -> None:
    assert simulate(noise, JudgeSettings(), runs=20, effect=0.05).promoted_rate >= 0.8


def test_the_same_seed_gives_the_same_runs(noise: Noise) -> None:
    one, other = (simulate(noise, JudgeSettings(), runs=5, effect=-0.1, seed=4) for _ in range(2))
    assert one == other


def test_a_noise_file_reads_back(noise: Noise, tmp_path: object) -> None:
    file = tmp_path / "noise.json"  # type: ignore[operator]
    write_noise(noise, file)
    assert read_noise(file) == noise


def test_the_packages_own_noise_is_there() -> None:
    assert read_noise().figures()["quad_log_ratio_sd"] > 0


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "about": {}, "requests": [[[1,2,3]]]}'])
def test_another_file_is_refused_by_name(text: str, tmp_path: object) -> None:
    file = tmp_path / "odd.json"  # type: ignore[operator]
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"odd\.json"):
        read_noise(file)
