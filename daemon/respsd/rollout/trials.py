"""The engine's side of a rollout: lets the windows of requests alternate between arms, and watches their steps.

Everything here runs on the engine's thread except `follow`, which replaces the plan by one assignment. Nothing here
waits, and what it reports goes through a callable that must not wait either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from respsd.clock import Clock
from respsd.control.controller import Controller, Decision, Vector
from respsd.control.router import ControllerSource
from respsd.engine.hooks import EngineHooks
from respsd.engine.window import StepMeasure
from respsd.experience.records import TransitionRecord
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.guards import Guard, GuardLimits, PolicyTimeGuard, StepTimeGuard
from respsd.rollout.pairing import Observation
from respsd.rollout.phases import PhaseClock, PlacedBlock, Quad
from respsd.rollout.plan import NOTHING, Plan


@dataclass(frozen=True, slots=True)
class Observed:
    """A quad was measured."""

    contest: Contest
    observation: Observation
    batch_size: float
    """Mean over its windows."""
    context_length: float
    """Likewise, in tokens."""


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A candidate was asked, and nothing was done with its answer."""

    contest: Contest
    seconds: float
    agreed: bool
    """It chose the champion's action."""


@dataclass(frozen=True, slots=True)
class Tripped:
    """A hard guard tripped for a contest's subject; its windows have ended."""

    contest: Contest
    guard: Guard
    detail: str


Event = Observed | Shadowed | Tripped


class Trials(EngineHooks):
    """Alternates the arms of the requests that it is given, by the plan."""

    def __init__(
        self,
        default: Callable[[], Controller],
        in_force: Callable[[Contest], bool],
        steps: int,
        report: Callable[[Event], None],
        *,
        rng: Random,
        clock: Clock,
        limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Start with nothing to compare.

        :param default: the controller of requests that are not, or no longer, under test
        :param in_force: whether the aliases still name a contest's versions; asked at every window, so that a change
            made by hand counts from the next window on
        :param steps: of a block
        :param report: told what happened; must return at once
        """
        self._default = default
        self._in_force = in_force
        self._report = report
        self._clock = clock
        self._limits = limits
        self._phases = PhaseClock(steps, rng, self._draw, self._finished)
        self._plan = NOTHING
        self._seen_plan = NOTHING
        self._quad_credit = 0.0
        self._contest_credit: dict[Contest, float] = {}
        self._stopped: set[Contest] = set()
        self._guarded_step = 0
        self._step_guards: dict[Contest, StepTimeGuard] = {}
        self._policy_guards: dict[Contest, PolicyTimeGuard] = {}

    @property
    def plan(self) -> Plan:
        """What is to be done now."""
        return self._plan

    def follow(self, plan: Plan) -> None:
        """Do this from the next step on; callable from any thread."""
        self._plan = plan

    def enrol(self) -> ControllerSource:
        """The source of a request that starts now; what is under test is decided quad by quad."""
        return _Source(self)

    def fault(self, version: int | None, guard: Guard, detail: str) -> None:
        """A policy failed and the baseline chose in its place."""
        for contest in self._plan.all_contests:
            if contest.subject.version == version:
                self._trip(contest, guard, detail)

    def before_batch(self) -> None:
        """See `EngineHooks`."""
        self._notice_plan()
        self._phases.before_batch()

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """See `EngineHooks`; sequences that shared the step report it once each, and it counts once."""
        del arm
        quad = self._phases.quad
        if quad is None or quad.contest is None or quad.cancelled or self._guarded_step == self._phases.steps_begun:
            return
        self._guarded_step = self._phases.steps_begun
        if quad.contest.control.is_off:  # no reference for trees, see `StepTimeGuard`
            return
        guard = self._step_guards.setdefault(quad.contest, StepTimeGuard(self._limits))
        if not self._phases.subject_runs:
            guard.control_step(step.decode_ns, step.batch_size)
        elif (detail := guard.subject_step(step.decode_ns, step.batch_size)) is not None:
            self._trip(quad.contest, "step-time", detail)

    def after_window(self, window: TransitionRecord) -> None:
        """See `EngineHooks`."""
        self._phases.after_window(window)

    def controller(self, source: object) -> Controller:
        """Who chooses for a request's window that opens now; `source` is what the request is known by."""
        self._notice_plan()
        self._drop_what_is_not_in_force()
        block = self._phases.place(source)
        arm, contest, shadow = block.arm, block.quad.contest, self._plan.shadow
        if arm is not None and contest is not None:
            return _InBlock(self, block, contest, arm)
        if shadow is not None and shadow not in self._stopped:
            return _InStep(_Shadow(self, shadow), block)
        return _InStep(self._default(), block)

    def chose(self, contest: Contest, arm: Arm, seconds: float) -> None:
        """A policy under test took so long to choose."""
        if arm is contest.subject:
            guard = self._policy_guards.setdefault(contest, PolicyTimeGuard(self._limits))
            if (detail := guard.chose(seconds)) is not None:
                self._trip(contest, "policy-time", detail)

    def timed(self, controller: Controller, observation: Vector, uniform: float) -> tuple[Decision, float]:
        """A choice and the seconds that it took."""
        before = self._clock.monotonic_ns()
        decision = controller.choose(observation, uniform)
        return decision, (self._clock.monotonic_ns() - before) / 1e9

    def shadowed(self, contest: Contest, seconds: float, *, agreed: bool) -> None:
        """A candidate was asked in vain."""
        self.chose(contest, contest.subject, seconds)
        self._report(Shadowed(contest, seconds, agreed))

    def _notice_plan(self) -> None:
        """Take a new plan in: end what it no longer has, and let it begin with the next request."""
        plan = self._plan
        if plan is self._seen_plan:
            return
        self._seen_plan = plan
        wanted = set(plan.all_contests)
        self._contest_credit = {contest: self._contest_credit.get(contest, 0.0) for contest, _ in plan.contests}
        if plan.contests:  # the first listed begins
            self._contest_credit[plan.contests[0][0]] = 1.0
        self._quad_credit = 1.0
        self._stopped &= wanted
        self._step_guards = {each: guard for each, guard in self._step_guards.items() if each in wanted}
        self._policy_guards = {each: guard for each, guard in self._policy_guards.items() if each in wanted}
        quad = self._phases.quad
        if quad is not None and (quad.contest is None or quad.contest not in wanted):
            self._phases.cancel()

    def _drop_what_is_not_in_force(self) -> None:
        for contest in self._plan.all_contests:
            if contest not in self._stopped and not self._in_force(contest):
                self._stop(contest)

    def _draw(self) -> Contest | None:
        """The contest of the next quad: as many quads as the plan says, at even distances, the first at once.

        So a new stage of a ramp begins with the next step, and with one quad, however small its share.
        """
        running = [(contest, share) for contest, share in self._plan.contests if contest not in self._stopped]
        self._quad_credit += self._plan.quad_share
        if not running or self._quad_credit < 1.0:
            return None
        self._quad_credit = min(self._quad_credit - 1.0, 1.0)
        total = sum(share for _, share in running)
        for contest, share in running:
            self._contest_credit[contest] += share / total
        chosen = max((contest for contest, _ in running), key=lambda contest: self._contest_credit[contest])
        self._contest_credit[chosen] -= 1.0
        return chosen

    def _finished(self, quad: Quad) -> None:
        contest, observation = quad.contest, quad.observation()
        if contest is not None and observation is not None and contest not in self._stopped:
            windows = len(quad.batch_sizes)
            batch_size, context = sum(quad.batch_sizes) / windows, sum(quad.context_lengths) / windows
            self._report(Observed(contest, observation, batch_size, context))

    def _stop(self, contest: Contest) -> None:
        """No window of it from the next step on, and what it was about to say is not heard."""
        self._stopped.add(contest)
        quad = self._phases.quad
        if quad is not None and quad.contest is contest:
            self._phases.cancel()

    def _trip(self, contest: Contest, guard: Guard, detail: str) -> None:
        if contest in self._stopped:
            return
        self._stop(contest)
        self._report(Tripped(contest, guard, detail))


class _Source:
    """One request's controllers; the object itself is what the phase clock knows the request by."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials

    def current(self) -> Controller:
        return self._trials.controller(self)


class _InBlock:
    """An arm's controller whose decisions carry the block."""

    def __init__(self, trials: Trials, block: PlacedBlock, contest: Contest, arm: Arm) -> None:
        self._trials = trials
        self._block = block
        self._contest = contest
        self._arm = arm

    @property
    def version(self) -> int | None:
        return self._arm.version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        decision, seconds = self._trials.timed(self._arm.controller, observation, uniform)
        self._trials.chose(self._contest, self._arm, seconds)
        if decision.policy_version == self._arm.version:
            return replace(decision, arm=self._arm.name, block=self._block)
        return replace(decision, block=self._block)  # the baseline, in place of a policy that failed


class _InStep:
    """A controller whose windows only keep in step."""

    def __init__(self, inner: Controller, block: PlacedBlock) -> None:
        self._inner = inner
        self._block = block

    @property
    def version(self) -> int | None:
        return self._inner.version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        return replace(self._inner.choose(observation, uniform), block=self._block)


class _Shadow:
    """The champion's controller, with the candidate asked beside it."""

    def __init__(self, trials: Trials, contest: Contest) -> None:
        self._trials = trials
        self._contest = contest

    @property
    def version(self) -> int | None:
        return self._contest.control.version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        decision = self._contest.control.controller.choose(observation, uniform)
        asked, seconds = self._trials.timed(self._contest.subject.controller, observation, uniform)
        self._trials.shadowed(self._contest, seconds, agreed=asked.action == decision.action)
        return decision
