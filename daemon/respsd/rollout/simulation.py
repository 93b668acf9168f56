"""How often the rollout errs and how fast it sees: its own phases, pairing and judge on measured noise.

A run is one evaluation. Each of its requests is one of the measured requests, drawn at random, window by window as it
was measured; a window of the candidate's takes the time that its effect leaves, and the scenario slows windows of both
arms alike. Requests under test are counted, whatever share of the traffic they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import median

from respsd.control.action import OFF
from respsd.control.static import StaticController
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.judge import Judge, JudgeSettings, Verdict
from respsd.rollout.noise import Noise
from respsd.rollout.pairing import Measured
from respsd.rollout.phases import PhaseClock, Quad

_CONTROL = Arm("champion", StaticController(OFF, 1, "champion"))
_CONTEST = Contest("candidate", Arm("candidate", StaticController(OFF, 2, "candidate")), _CONTROL)


class Scenario(StrEnum):
    """What else happens while the candidate is under test."""

    CALM = "calm"
    SLOW = "slow"
    """The workload is 15 % slower from the swap on."""
    DRIFT = "drift"
    """Speed wanders by 2 % a window, and falls by 1 % with every request, back at last to where it began."""
    NOISY = "noisy"
    """A neighbour comes for 15 windows on average, every 60, and makes them 1.2 to 2.5 times slower."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    verdict: Verdict
    requests: int
    """Under test when the verdict came."""
    pairs: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs."""

    runs: int
    effect: float
    scenario: Scenario
    wrong_rollback_rate: float
    """Share of runs that rolled back a candidate that was not slower; 0 where it was."""
    found_rate: float | None
    """Share of runs that rolled back a candidate that was slower; None where it was not."""
    promoted_rate: float
    inconclusive_rate: float
    median_requests: float | None
    """Until rollback where the candidate is slower, else until promotion; None where less than half came to it."""
    median_pairs: float | None


def simulate(
    noise: Noise,
    settings: JudgeSettings,
    *,
    runs: int,
    effect: float,
    scenario: Scenario = Scenario.CALM,
    seed: int = 0,
    persistence: int = 10,
    progress: Callable[[], None] = lambda: None,
) -> Summary:
    """Run that many evaluations of a candidate whose speed is `1 + effect` times the champion's."""
    outcomes = []
    for run in range(runs):
        rng = Random(f"{seed}/{scenario}/{run}")
        outcomes.append(_evaluate(noise, settings, effect, _slowness(scenario, rng), rng, persistence))
        progress()
    return _summary(outcomes, effect, scenario)


def _evaluate(
    noise: Noise, settings: JudgeSettings, effect: float, slowness: Iterator[float], rng: Random, persistence: int
) -> Outcome:
    """One evaluation, to its verdict."""
    judge = Judge(settings)
    verdict = Verdict.HOLD

    def finished(quad: Quad) -> None:
        nonlocal verdict
        observation = quad.observation()
        if observation is not None and verdict is Verdict.HOLD:
            verdict = judge.observe(observation.log_ratio)

    clock = PhaseClock(persistence, rng, lambda: _CONTEST, finished)
    requests = 0
    while verdict is Verdict.HOLD:
        requests += 1
        _serve(clock, rng.choice(noise.requests), effect, slowness, persistence)
    return Outcome(verdict, requests, judge.pairs)


def _serve(
    clock: PhaseClock, windows: tuple[Measured, ...], effect: float, slowness: Iterator[float], persistence: int
) -> None:
    """One request under test, from its first window to its last."""
    participant = object()
    for number, window in enumerate(windows, start=1):
        clock.before_batch()
        placed = clock.place(participant)
        for _ in range(persistence - 1):
            clock.before_batch()
        speed = 1.0 + effect if placed.arm is _CONTEST.subject else 1.0
        measured = Measured(window.steps, window.tokens, round(window.ns * next(slowness) / speed))
        clock.book(placed, measured, last=number == len(windows))


def _slowness(scenario: Scenario, rng: Random) -> Iterator[float]:
    """What each window's time is multiplied by."""
    match scenario:
        case Scenario.CALM:
            return _constant(1.0)
        case Scenario.SLOW:
            return _constant(1.0 / 0.85)
        case Scenario.DRIFT:
            return _drift(rng)
        case Scenario.NOISY:
            return _neighbour(rng)


def _constant(value: float) -> Iterator[float]:
    while True:
        yield value


def _drift(rng: Random, step: float = 0.02, tide: float = 0.35, period: int = 2000) -> Iterator[float]:
    wander, window = 0.0, 0
    while True:
        wander = 0.999 * wander + rng.gauss(0.0, step)
        window += 1
        yield math.exp(wander + tide * math.sin(2 * math.pi * window / period))


def _neighbour(rng: Random, comes: float = 1 / 60, goes: float = 1 / 15) -> Iterator[float]:
    factor = 1.0
    while True:
        if factor == 1.0:
            factor = rng.uniform(1.2, 2.5) if rng.random() < comes else 1.0
        elif rng.random() < goes:
            factor = 1.0
        yield factor


def _summary(outcomes: list[Outcome], effect: float, scenario: Scenario) -> Summary:
    runs = len(outcomes)
    wanted = Verdict.ROLLBACK if effect < 0 else Verdict.PROMOTE
    rolled_back = sum(each.verdict is Verdict.ROLLBACK for each in outcomes) / runs
    requests = median(each.requests if each.verdict is wanted else math.inf for each in outcomes)
    pairs = median(each.pairs if each.verdict is wanted else math.inf for each in outcomes)
    return Summary(
        runs=runs,
        effect=effect,
        scenario=scenario,
        wrong_rollback_rate=0.0 if effect < 0 else rolled_back,
        found_rate=rolled_back if effect < 0 else None,
        promoted_rate=sum(each.verdict is Verdict.PROMOTE for each in outcomes) / runs,
        inconclusive_rate=sum(each.verdict is Verdict.INCONCLUSIVE for each in outcomes) / runs,
        median_requests=None if math.isinf(requests) else requests,
        median_pairs=None if math.isinf(pairs) else pairs,
    )
