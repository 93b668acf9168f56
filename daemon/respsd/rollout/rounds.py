"""Which rounds there should be, and how one begins or goes on from recorded evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from respsd.clock import Clock
from respsd.control.action import OFF
from respsd.control.router import BASELINE, CANDIDATE, CHAMPION, LAST_GOOD
from respsd.control.static import StaticController
from respsd.rollout.budget import DAY_NS, AlphaBudget
from respsd.rollout.contest import OFF_ARM, Arm, Contest, Kind
from respsd.rollout.evidence import Evidence
from respsd.rollout.judge import Judge, JudgeSettings
from respsd.rollout.moves import ServingAliases
from respsd.rollout.round import SHADOW, Round
from respsd.settings_learning import RolloutSettings


def candidate_contest(router: ServingAliases) -> Contest | None:
    """The candidate against the champion; None where no alias names another version than the champion's."""
    serving = router.serving()
    if serving.get(CANDIDATE) in (None, serving[CHAMPION]):
        return None
    return Contest("candidate", _arm(router, CANDIDATE), _arm(router, CHAMPION))


def holdout_contests(router: ServingAliases, settings: RolloutSettings) -> Iterator[tuple[Contest, float]]:
    """The champion against each that it must beat, with that one's share of windows; nobody is held against itself."""
    serving, champion = router.serving(), _arm(router, CHAMPION)
    baseline = _arm(router, BASELINE)
    if serving.get(LAST_GOOD) not in (None, champion.version, baseline.version):
        yield Contest("last-good", champion, _arm(router, LAST_GOOD)), settings.holdout_last_good
    if baseline.version != champion.version:
        yield Contest("baseline", champion, baseline), settings.holdout_baseline
    if not champion.is_off and not baseline.is_off:
        yield Contest("off", champion, Arm(OFF_ARM, StaticController(OFF, None, OFF_ARM))), settings.holdout_off


def in_force(router: ServingAliases, contest: Contest) -> bool:
    """Whether the aliases still name the versions that a contest compares."""
    return contest.aliases.items() <= router.serving().items()


def judge_settings(settings: RolloutSettings, kind: Kind) -> JudgeSettings:
    """How a contest of that kind is judged where the day's error probability allows."""
    cap = settings.max_pairs if kind == "candidate" else settings.holdout_pairs
    return JudgeSettings(settings.margin, settings.alpha, settings.clip, min(settings.min_pairs, cap), cap)


class RoundMaker:
    """Begins rounds with their part of the day's error probability, or resumes them."""

    def __init__(self, settings: RolloutSettings, evidence: Evidence, clock: Clock) -> None:
        self._settings = settings
        self._evidence = evidence
        self._clock = clock
        since = clock.time_ns() - DAY_NS
        self._budgets = {
            evaluations: AlphaBudget(
                settings.alpha, settings.alpha_per_day, evidence.spent(since, evaluations=evaluations)
            )
            for evaluations in (True, False)
        }

    def make(self, contest: Contest) -> Round:
        """The round of a contest: as far as recorded evidence brings it, or new."""
        resumed = self._evidence.resume(contest)
        if resumed is not None:
            judge = Judge(replace(judge_settings(self._settings, contest.kind), alpha=resumed.alpha))
            round_ = Round(contest, judge, resumed.started_at_ns, resumed.stage, resumed.id)
            for each in resumed.pairs:
                round_.observe(each.observation, each.batch_size, each.context_length)
            round_.stage_pairs = 0
            return round_
        now = self._clock.time_ns()
        alpha = self._budgets[contest.kind == "candidate"].take(now)
        judge = Judge(replace(judge_settings(self._settings, contest.kind), alpha=alpha))
        first = SHADOW if contest.kind == "candidate" and self._settings.shadow_windows else SHADOW + 1
        round_ = Round(contest, judge, now, first)
        self._evidence.begin(round_)
        return round_


def _arm(router: ServingAliases, alias: str) -> Arm:
    return Arm(alias, router.controller(alias))
