from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.rollout.judge import AGAINST_SLOWER, FOR_GOOD_ENOUGH, Bets, Floats, Judge, JudgeSettings, Verdict, Wager

CLIP = 0.5
Law = Callable[[np.random.Generator, int], Floats]
ratios = st.floats(-2.0, 2.0)


def decide(settings: JudgeSettings, values: object) -> Judge:
    judge = Judge(settings)
    for value in values:  # type: ignore[attr-defined]
        if judge.observe(float(value)) is not Verdict.HOLD:
            break
    return judge


BETS = [AGAINST_SLOWER, FOR_GOOD_ENOUGH]


def test_capital_by_hand() -> None:
    """Bets on 0.04 and 0.2. Before any observation the mean square is 0.04, so against mean 0 they stake 1.0 and, as
    5.0 could lose everything, 0.95 / 0.5 = 1.9. The first observation makes it (8 * 0.04 + 0.0625) / 9 = 0.0425."""
    wager = Wager(CLIP, 0.0, +1, ((0.04, 0.75), (0.2, 0.25)))
    wager.observe(0.25)
    wager.observe(-0.1)
    careful = 0.75 * (1 + 1.0 * 0.25) * (1 - 0.04 / 0.0425 * 0.1)
    bold = 0.25 * (1 + 1.9 * 0.25) * (1 - 1.9 * 0.1)
    assert wager.log_capital == pytest.approx(math.log(careful + bold))


@given(st.lists(st.floats(-CLIP, CLIP), max_size=50), st.floats(-0.5, 0.5), st.sampled_from(BETS))
def test_one_by_one_or_all_at_once_is_the_same(values: list[float], mean: float, bets: Bets) -> None:
    one, all_ = Wager(CLIP, mean, +1, bets), Wager(CLIP, mean, +1, bets)
    for value in values:
        one.observe(value)
    all_.observe_all(np.array(values))
    assert one.log_capital == pytest.approx(all_.log_capital, abs=1e-9)


@given(st.lists(st.floats(-CLIP, CLIP), max_size=50), st.floats(-0.5, 0.5), st.sampled_from([1, -1]))
def test_capital_starts_at_one_and_no_observation_takes_all_of_it(values: list[float], mean: float, side: int) -> None:
    """Obligation 1, and the start of obligation 4, after any history: the worst that can come leaves a twentieth."""
    for bets in BETS:
        wager = Wager(CLIP, mean, side, bets)
        assert wager.log_capital == pytest.approx(0.0, abs=1e-12)
        wager.observe_all(np.array(values))
        before = wager.log_capital
        wager.observe(-side * CLIP)
        assert wager.log_capital >= before + math.log(0.05) - 1e-9


@given(
    st.lists(st.floats(-CLIP, CLIP), max_size=30),
    st.floats(-0.3, 0.3),
    st.floats(0.01, 0.5),
    st.sampled_from([1, -1]),
    st.sampled_from(BETS),
)
def test_capital_does_not_grow_on_average_where_the_claim_holds(
    history: list[float], mean: float, spread: float, side: int, bets: Bets
) -> None:
    """Obligations 2 and 3: after any history, over every two-point law in the bounds with that mean, exactly."""
    low, high = max(mean - spread, -CLIP), min(mean + spread, CLIP)
    weight = (mean - low) / (high - low)  # of `high`
    before, expected = 0.0, 0.0
    for value, probability in ((low, 1 - weight), (high, weight)):
        wager = Wager(CLIP, mean, side, bets)
        wager.observe_all(np.array(history))
        before = wager.log_capital
        wager.observe(value)
        expected += probability * math.exp(wager.log_capital - before)
    assert expected <= 1.0 + 1e-9


@given(
    st.lists(st.floats(-CLIP, CLIP), max_size=60),
    st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)).map(sorted),
    st.sampled_from(BETS),
)
def test_a_bolder_claim_is_never_easier_to_prove(values: list[float], means: list[float], bets: Bets) -> None:
    """Obligation 5: "the mean is greater than m" gets harder with m, whatever was seen."""
    easy, hard = (Wager(CLIP, mean, +1, bets) for mean in means)
    easy.observe_all(np.array(values))
    hard.observe_all(np.array(values))
    assert hard.log_capital <= easy.log_capital + 1e-9


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
def test_capital_mirrors_with_the_data(values: list[float]) -> None:
    clipped = np.clip(values, -CLIP, CLIP)
    for bets in BETS:
        one, mirrored = Wager(CLIP, 0.1, +1, bets), Wager(CLIP, -0.1, -1, bets)
        one.observe_all(clipped)
        mirrored.observe_all(-clipped)
        assert mirrored.log_capital == pytest.approx(one.log_capital, abs=1e-9)


def skewed(rng: np.random.Generator, count: int) -> Floats:
    """Many small losses and few large gains."""
    return np.clip(rng.exponential(0.2, count) - 0.2, -CLIP, CLIP)


def symmetric(rng: np.random.Generator, count: int) -> Floats:
    return np.clip(rng.standard_t(3, count) * 0.12, -CLIP, CLIP)


def in_bursts(rng: np.random.Generator, count: int) -> Floats:
    """Its spread depends on what was seen before, which the stakes follow; its mean does not."""
    values = np.zeros(count)
    spread = 0.1
    for number in range(count):
        values[number] = np.clip(rng.choice((-1.0, 1.0)) * spread, -CLIP, CLIP)
        spread = 0.4 if values[number] > 0 and rng.random() < 0.3 else max(0.05, 0.9 * spread)
    return values


@pytest.mark.parametrize("law", [skewed, symmetric, in_bursts])
@pytest.mark.parametrize(("bets", "side"), [(AGAINST_SLOWER, -1), (FOR_GOOD_ENOUGH, +1)])
def test_the_interval_covers_the_true_mean_at_all_times(law: Law, bets: Bets, side: int) -> None:
    """Coverage by simulation: 400 runs, looked at after every one of 300 observations.

    A side may miss in 5 %, so in 400 runs 20 on average at most; 35 would be a one in a thousand accident.
    """
    rng = np.random.default_rng(1)
    mean = 0.0 if law is not skewed else float(skewed(np.random.default_rng(2), 2_000_000).mean())
    missed = 0
    for _ in range(400):
        wager = Wager(CLIP, mean, side, bets)
        for value in law(rng, 300):
            wager.observe(float(value))
            if wager.has(-math.log(0.05)):
                missed += 1
                break
    assert missed <= 35


def test_a_loss_of_five_percent_is_seen_sooner_on_a_quiet_machine() -> None:
    """The stakes follow the noise: half of it, about a third of the observations."""
    rng = np.random.default_rng(3)

    def needed(noise: float) -> float:
        return float(
            np.median([decide(JudgeSettings(), rng.normal(math.log(0.95), noise, 1500)).pairs for _ in range(60)])
        )

    assert needed(0.1) <= 60
    assert needed(0.2) <= 150


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
