from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.rollout.judge import Judge, JudgeSettings, Verdict, Wager, bounds

CLIP = 0.5
ratios = st.floats(-2.0, 2.0)


def decide(settings: JudgeSettings, values: object) -> Judge:
    judge = Judge(settings)
    for value in values:  # type: ignore[attr-defined]
        if judge.observe(float(value)) is not Verdict.HOLD:
            break
    return judge


def test_capital_is_the_mean_of_the_products_of_one_stake_each() -> None:
    """By hand: stakes are shares of 1/clip = 2, so against mean 0 an observation of 0.25 pays 1 + 2 * share * 0.25."""
    wager = Wager(CLIP, 0.0, +1)
    wager.observe(0.25)
    wager.observe(-0.1)
    shares = (0.15, 0.35, 0.6, 0.95)
    expected = sum((1 + 2 * share * 0.25) * (1 - 2 * share * 0.1) for share in shares) / len(shares)
    assert wager.log_capital == pytest.approx(math.log(expected))


@given(mean=st.floats(-0.49, 0.49), side=st.sampled_from([1, -1]))
def test_capital_is_never_negative_and_starts_at_no_more_than_one(mean: float, side: int) -> None:
    """Obligation 1, and the start of obligation 4: the worst observation leaves something of every stake that bets."""
    wager = Wager(CLIP, mean, side)
    assert wager.log_capital <= 1e-12
    for _ in range(50):
        wager.observe(-side * CLIP)
    assert not math.isnan(wager.log_capital)


@given(mean=st.floats(-0.3, 0.3), spread=st.floats(0.01, 0.5), side=st.sampled_from([1, -1]))
def test_capital_does_not_grow_on_average_where_the_claim_holds(mean: float, spread: float, side: int) -> None:
    """The supermartingale step, exactly: over every two-point law in the bounds with that mean."""
    low, high = max(mean - spread, -CLIP), min(mean + spread, CLIP)
    weight = (mean - low) / (high - low)  # of `high`
    expected = 0.0
    for value, probability in ((low, 1 - weight), (high, weight)):
        wager = Wager(CLIP, mean, side)
        wager.observe(value)
        expected += probability * math.exp(wager.log_capital)
    assert expected <= 1.0 + 1e-9


@given(st.lists(ratios, min_size=1, max_size=60))
def test_bounds_enclose_and_agree_with_the_verdict(values: list[float]) -> None:
    settings = JudgeSettings(min_pairs=1)
    judge = decide(settings, values)
    lower, upper = judge.bounds()
    assert -CLIP <= lower <= upper <= CLIP
    assert (judge.verdict is Verdict.ROLLBACK) == (upper < 0)
    if judge.verdict is not Verdict.ROLLBACK:
        assert (judge.verdict is Verdict.PROMOTE) == (lower >= settings.floor - 1e-9)


@given(st.lists(ratios, max_size=40))
def test_bounds_mirror_with_the_data(values: list[float]) -> None:
    clipped = [max(min(value, CLIP), -CLIP) for value in values]
    lower, upper = bounds(clipped, CLIP, 0.05)
    mirrored = bounds([-value for value in clipped], CLIP, 0.05)
    assert mirrored == pytest.approx((-upper, -lower), abs=1e-9)


def test_the_interval_covers_the_true_mean_at_all_times() -> None:
    """Coverage by simulation: 400 runs, looked at after every one of 300 observations, under a skewed law.

    Each side may miss in 5 %, so in 400 runs 20 on average at most; 35 would be a one in a thousand accident.
    """
    rng = np.random.default_rng(1)
    missed: Counter[str] = Counter()
    needed = -math.log(0.05)
    mean = float(np.clip(rng.exponential(0.2, 400_000) - 0.2, -CLIP, CLIP).mean())
    for _ in range(400):
        values = np.clip(rng.exponential(0.2, 300) - 0.2, -CLIP, CLIP)
        wagers = {"lower": Wager(CLIP, mean, +1), "upper": Wager(CLIP, mean, -1)}
        for side, wager in wagers.items():
            capital = []
            for value in values:
                wager.observe(float(value))
                capital.append(wager.log_capital)
            missed[side] += max(capital) >= needed
    assert missed["lower"] <= 35
    assert missed["upper"] <= 35


@pytest.mark.parametrize(("effect", "verdict"), [(-0.1, Verdict.ROLLBACK), (0.05, Verdict.PROMOTE)])
def test_clear_effects_are_decided(effect: float, verdict: Verdict) -> None:
    rng = np.random.default_rng(2)
    judge = decide(JudgeSettings(), rng.normal(math.log1p(effect), 0.2, 1500))
    assert judge.verdict is verdict


def test_without_enough_pairs_there_is_no_verdict() -> None:
    settings = JudgeSettings(min_pairs=30)
    judge = Judge(settings)
    verdicts = [judge.observe(-0.6) for _ in range(31)]
    assert verdicts == [Verdict.HOLD] * 29 + [Verdict.ROLLBACK] * 2


def test_at_the_cap_it_is_inconclusive() -> None:
    judge = decide(JudgeSettings(min_pairs=1, max_pairs=20), [0.01, -0.01] * 10)
    assert (judge.verdict, judge.pairs) == (Verdict.INCONCLUSIVE, 20)


def test_a_verdict_stands_whatever_comes_after() -> None:
    judge = Judge(JudgeSettings())
    while judge.observe(-0.4) is Verdict.HOLD:
        pass
    assert [judge.observe(0.5) for _ in range(40)] == [Verdict.ROLLBACK] * 40


def test_no_single_observation_decides() -> None:
    """Clipping bounds what one absurd measurement can do."""
    assert Judge(JudgeSettings(min_pairs=1)).observe(-1e9) is Verdict.HOLD
