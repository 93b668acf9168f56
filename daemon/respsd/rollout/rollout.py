"""The rollout: hears from the trials, asks the judge, moves aliases, and tells the trials what to do next.

`pump` does all of it once; a thread calls it. Nothing here runs on the engine's thread but the queue's `put`.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from random import Random

import structlog

from respsd.clock import Clock
from respsd.control.router import CANDIDATE, CHAMPION, ControllerSource
from respsd.errors import InvalidRequest, Overtaken, RespsdError
from respsd.rollout.budget import DAY_NS
from respsd.rollout.contest import Arm, Contest, Kind
from respsd.rollout.decisions import Decisions
from respsd.rollout.evidence import Evidence, Recorded
from respsd.rollout.guards import Guard, GuardLimits
from respsd.rollout.judge import Verdict
from respsd.rollout.moves import PolicyMoves, ServingAliases
from respsd.rollout.plan import NOTHING, Plan
from respsd.rollout.round import SHADOW, Round
from respsd.rollout.rounds import RoundMaker, candidate_contest, holdout_contests, in_force
from respsd.rollout.status import SLOWER, RolloutStatus, RoundStatus
from respsd.rollout.trials import Event, Observed, Shadowed, Trials, Tripped
from respsd.settings_learning import RolloutSettings

POLL_SECONDS = 0.2
"""How often aliases that others moved are noticed while nothing is heard."""
MOST_UNHEARD = 50_000
"""Observations that may wait, minutes of a busy engine's, while the rollout is held up, as by a locked database."""

log = structlog.get_logger(__name__)


class Rollout:
    """Evaluates candidates and keeps the champion measured. `trials` are the engine's hooks; start, then close."""

    def __init__(
        self,
        router: ServingAliases,
        moves: PolicyMoves,
        settings: RolloutSettings,
        evidence: Evidence,
        *,
        persistence: int,
        off_version: Callable[[], int],
        rng: Random,
        clock: Clock,
    ) -> None:
        """Stand beside a running engine.

        :param persistence: steps of a window
        :param off_version: the stored version that is plain decoding, made where there is none
        :param rng: throws the coins that decide the arms' order; it must not be predictable from the workload
        """
        self._router = router
        self._settings = settings
        self._evidence = evidence
        self._clock = clock
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._dropped = self._dropped_told = 0
        self._decisions = Decisions(moves, settings, off_version)
        self._rounds: dict[Kind, Round] = {}
        self._shares: dict[Kind, float] = {}
        self._maker: RoundMaker | None = None
        self._cooldown_until_ns = 0
        self._serving: dict[str, int | None] = {}
        self._rollbacks: Counter[str] = Counter()
        self._promotions = 0
        self._waiting: str | None = None
        self._status = RolloutStatus()
        self._champion_faults: queue.SimpleQueue[tuple[int, Guard, str]] = queue.SimpleQueue()
        limits = GuardLimits(
            step_time_factor=settings.step_time_factor,
            step_time_steps=settings.step_time_steps,
            policy_seconds=settings.policy_milliseconds / 1e3,
            policy_choices=settings.policy_choices,
        )
        self.trials = Trials(
            lambda: router.controller(CHAMPION),
            lambda contest: in_force(router, contest),
            persistence,
            self.take,
            rng=rng,
            clock=clock,
            limits=limits,
        )
        self._plan_lost = False
        self._barred: set[int | None] = set()
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; what is under way goes on at the next start. Idempotent."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self.trials.follow(NOTHING)

    def enrol(self) -> ControllerSource | None:
        """For `Traffic.trial`: the source of a request that starts now; None where it is not the champion's."""
        return self.trials.enrol() if self._router.default == CHAMPION else None

    def on_fault(self, version: int | None, fault: Exception) -> None:
        """For `PolicyRouter.on_fault`: a policy failed at a window; on the engine's thread."""
        guard: Guard = "illegal-action" if isinstance(fault, InvalidRequest) else "exception"
        self.trials.fault(version, guard, str(fault))
        if version is not None and version == self._router.serving()[CHAMPION]:
            self._champion_faults.put((version, guard, str(fault)))

    def take(self, event: Event) -> None:
        """Queue what a trial tells, on the engine's thread; observations that none gets to are dropped and told of."""
        if isinstance(event, Tripped) or self._events.qsize() < MOST_UNHEARD:
            self._events.put(event)
        else:
            self._dropped += 1

    def status(self) -> RolloutStatus:
        """How it stands; from any thread."""
        return self._status

    def _run(self) -> None:
        while True:
            try:
                first = self._events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._guarded_pump()
                continue
            if first is None:
                return
            self._guarded_pump(first)

    def _guarded_pump(self, first: Event | None = None) -> None:
        try:
            self.pump(first)
        except Exception:
            # A rollout that fails stops comparing until the next pump succeeds; the champion serves on.
            log.exception("rollout_failed")
            self.trials.follow(NOTHING)
            self._plan_lost = True

    def pump(self, first: Event | None = None) -> None:
        """Take in what was heard, decide, and notice what others changed."""
        if self._maker is None:
            self._wake_up()
        heard = self._heard(first)
        self._heed_flags()
        for event in heard:
            self._hear(event)
        self._tell_of_dropped(self._dropped)
        self._hear_of_champion()
        self._follow_aliases()
        self._publish()
        if self._plan_lost:  # by a pump that failed
            self._plan_again()
            self._plan_lost = False

    def _tell_of_dropped(self, dropped: int) -> None:
        if dropped > self._dropped_told:
            log.warning("rollout_held_up", dropped_observations=dropped - self._dropped_told)
            self._dropped_told = dropped

    def _wake_up(self) -> None:
        """Read what earlier runs left."""
        self._maker = RoundMaker(self._settings, self._evidence, self._clock)
        last = self._evidence.last_rollback_ns()
        if last is not None:
            self._cooldown_until_ns = last + round(self._settings.cooldown_seconds * 1e9)

    def _heard(self, first: Event | None) -> list[Event]:
        events = [] if first is None else [first]
        while not self._events.empty():
            event = self._events.get()
            if event is None:
                self._events.put(None)  # for the thread, which it is to end
                break
            events.append(event)
        return events

    def _heed_flags(self) -> None:
        """A freeze or a pin ends an evaluation under way; its candidate waits, and is evaluated anew later."""
        evaluation = self._rounds.get("candidate")
        why = None if evaluation is None else self._decisions.why_end()
        if evaluation is not None and why is not None:
            log.info("rollout_evaluation_ended", contest=str(evaluation.contest), why=why)
            self._end(evaluation, "stopped")

    def _hear(self, event: Event) -> None:
        round_ = self._rounds.get(event.contest.kind)
        if round_ is None or round_.contest is not event.contest or not in_force(self._router, event.contest):
            return  # of a round that is over, or about to be: another event, or somebody, has moved its versions
        match event:
            case Observed():
                self._observe(round_, event)
            case Shadowed():
                round_.shadow_windows += 1
                round_.shadow_agreed += event.agreed
                round_.shadow_seconds += event.seconds
            case Tripped():
                self._roll_back(round_, event.guard, event.detail)
        if round_.contest.kind in self._rounds:
            self._climb(round_)

    def _observe(self, round_: Round, event: Observed) -> None:
        recorded = Recorded(event.observation, event.batch_size, event.context_length)
        self._evidence.add(round_, recorded, self._clock.time_ns())
        self._act_on(round_, round_.observe(event.observation, event.batch_size, event.context_length))

    def _act_on(self, round_: Round, verdict: Verdict) -> None:
        match verdict:
            case Verdict.ROLLBACK:
                self._roll_back(round_, SLOWER, None)
            case Verdict.PROMOTE if round_.is_evaluation and round_.stage == len(self._settings.ramp):
                self._promote(round_)
            case Verdict.INCONCLUSIVE if round_.is_evaluation:
                self._attempt(round_, "inconclusive", self._decisions.give_up)
            case Verdict.INCONCLUSIVE:
                self._end(round_, "kept")  # a holdout's next round begins afresh

    def _promote(self, round_: Round) -> None:
        if self._attempt(round_, "promote", self._decisions.promote):
            self._promotions += 1

    def _roll_back(self, round_: Round, reason: str, detail: str | None) -> None:
        def move(lost: Round) -> str:
            return self._decisions.roll_back(lost, reason, detail)

        if self._attempt(round_, "rollback", move):
            self._rolled_back(reason)

    def _rolled_back(self, reason: str) -> None:
        self._rollbacks[reason] += 1
        self._cooldown_until_ns = self._clock.time_ns() + round(self._settings.cooldown_seconds * 1e9)
        self._decisions.freeze_after_too_many()

    def _attempt(self, round_: Round, verdict: str, move: Callable[[Round], str]) -> bool:
        """Make a decision's move and end its round, also where the move is refused; whether it was made."""
        try:
            said = move(round_)
        except Overtaken as fault:
            log.info("rollout_overtaken", verdict=verdict, contest=str(round_.contest), fault=str(fault))
            return False  # `_follow_aliases` ends the round
        except RespsdError as fault:
            log.warning("rollout_move_refused", verdict=verdict, contest=str(round_.contest), fault=str(fault))
            self._end(round_, f"{verdict}-refused")
            if round_.is_evaluation:
                self._barred.add(round_.contest.subject.version)  # else it would be tried again and again
            return False
        log.info("rollout_decision", verdict=verdict, said=said, **round_.figures())
        self._end(round_, verdict)
        return True

    def _climb(self, round_: Round) -> None:
        """To the next stage, where the gate of this one is passed."""
        if not round_.is_evaluation or round_.stage >= len(self._settings.ramp):
            return
        if round_.stage == SHADOW:
            passed = round_.shadow_windows >= self._settings.shadow_windows
        else:
            passed = round_.stage_pairs >= self._settings.gate_pairs
        if passed:
            round_.stage, round_.stage_pairs = round_.stage + 1, 0
            self._evidence.reached(round_)
            log.info("rollout_stage", stage=round_.stage, contest=str(round_.contest))
            self._plan_again()
            self._act_on(round_, round_.judge.verdict)

    def _hear_of_champion(self) -> None:
        """A champion whose policy fails goes at once; until then the baseline chooses in its place."""
        while not self._champion_faults.empty():
            version, guard, detail = self._champion_faults.get()
            if version in self._barred or version != self._router.serving()[CHAMPION]:
                continue
            self._barred.add(version)  # it fails at every window, and is dropped, or not, at the first
            try:
                self._decisions.drop_champion(version, guard, detail)
            except RespsdError as fault:
                log.warning("rollout_move_refused", verdict="rollback", version=version, fault=str(fault))
            else:
                self._rolled_back(guard)

    def _follow_aliases(self) -> None:
        """End rounds whose versions others moved, and begin those that there should be."""
        serving = dict(self._router.serving())
        if serving != self._serving:
            self._supersede(serving)
            self._barred &= set(serving.values())  # what was withdrawn may come back
            self._serving = serving
        before = dict(self._rounds)
        self._begin_evaluation()
        self._begin_holdouts()
        if self._rounds != before:
            self._plan_again()

    def _supersede(self, serving: dict[str, int | None]) -> None:
        for kind, round_ in list(self._rounds.items()):
            contest = round_.contest
            if in_force(self._router, contest):
                continue
            self._end(round_, "superseded")
            if kind == "candidate" and serving[CHAMPION] != contest.control.version:
                self._decisions.stand_down(round_, serving.get(CANDIDATE))

    def _begin_evaluation(self) -> None:
        if "candidate" in self._rounds:
            return
        contest = candidate_contest(self._router)
        self._waiting = None if contest is None else self._why_wait(contest)
        if contest is not None and self._waiting is None:
            self._begin(contest)

    def _why_wait(self, contest: Contest) -> str | None:
        """Why the candidate is not evaluated now; None where it is."""
        if not self._settings.enabled:
            return "rollout is switched off"
        if self._clock.time_ns() < self._cooldown_until_ns:
            return "a pause after a rollback"
        if contest.subject.version in self._barred:
            return f"a decision on version {contest.subject.version} could not be carried out; see the log"
        return self._decisions.why_not(contest)

    def _begin_holdouts(self) -> None:
        if not self._settings.enabled:
            return
        for contest, share in holdout_contests(self._router, self._settings):
            if share > 0 and contest.kind not in self._rounds:
                self._begin(contest)
                self._shares[contest.kind] = share

    def _begin(self, contest: Contest) -> None:
        assert self._maker is not None
        self._rounds[contest.kind] = self._maker.make(contest)
        log.debug("rollout_round", contest=str(contest), alpha=self._rounds[contest.kind].judge.settings.alpha)

    def _end(self, round_: Round, verdict: str) -> None:
        self._evidence.end(round_, verdict, self._clock.time_ns())
        self._rounds.pop(round_.contest.kind, None)
        self._plan_again()

    def _plan_again(self) -> None:
        """Tell the trials what to do. Holdouts pause while a candidate climbs the ramp, which is short."""
        evaluation = self._rounds.get("candidate")
        contests, shadow = [], None
        if evaluation is not None and evaluation.stage == SHADOW:
            shadow = evaluation.contest
        elif evaluation is not None:
            contests.append((evaluation.contest, self._share(evaluation)))
        if evaluation is None or evaluation.stage == len(self._settings.ramp):
            others = [each for kind, each in self._rounds.items() if kind != "candidate"]
            contests += [(each.contest, self._share(each)) for each in others]
        self.trials.follow(Plan(tuple(contests), shadow))

    def _share(self, round_: Round) -> float:
        if not round_.is_evaluation:
            return self._shares[round_.contest.kind]
        return self._settings.ramp[round_.stage - 1] if round_.stage != SHADOW else 0.0

    def _publish(self) -> None:
        champion = Arm(CHAMPION, self._router.controller(CHAMPION))
        cooling = self._clock.time_ns() < self._cooldown_until_ns <= self._clock.time_ns() + DAY_NS
        self._status = RolloutStatus(
            rounds=tuple(RoundStatus.of(each, self._share(each)) for each in self._rounds.values()),
            rollbacks=dict(self._rollbacks),
            promotions=self._promotions,
            cooldown_until_ns=self._cooldown_until_ns if cooling else None,
            waiting=self._waiting,
            speculation_off=champion.is_off,
        )
