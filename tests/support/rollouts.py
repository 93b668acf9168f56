"""A rollout without engine and store: policies in memory, evidence in memory, a clock that stands still."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from policy_store import Flags
from policy_store.flags import Flag
from respsd.control.action import OFF, Action
from respsd.control.controller import Controller
from respsd.control.policy_change import Intent, PolicyChange
from respsd.control.static import StaticController
from respsd.errors import ChangeRefused, Overtaken, RespsdError
from respsd.rollout.contest import Contest, Kind
from respsd.rollout.evidence import Evidence, NoEvidence
from respsd.rollout.pairing import Measured, Observation
from respsd.rollout.rollout import Rollout
from respsd.rollout.trials import Observed, Shadowed, Tripped
from respsd.settings_learning import RolloutSettings

BASELINE, CHAMPION, CANDIDATE, LAST_GOOD = 1, 5, 7, 4
OFF_VERSION = 99
ACTION = Action(8, 3, 3)
HOLDOUTS = {"holdout_last_good": 0.05, "holdout_baseline": 0.02, "holdout_off": 0.01}


@dataclass
class StillClock:
    """Moves when a test moves it."""

    now_ns: int = 1_796_040_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@dataclass
class MemoryPolicies:
    """Router and operator in one: aliases in a dict, and every move that was made."""

    aliases: dict[str, int] = field(
        default_factory=lambda: {"baseline": BASELINE, "champion": CHAMPION, "last-good": LAST_GOOD}
    )
    default: str = "champion"
    moves: list[tuple[str, int | str | None, Intent]] = field(default_factory=list)
    frozen: str | None = None
    pinned: int | None = None
    by_hand: set[int] = field(default_factory=set)
    automatic: int = 0
    refuse: RespsdError | None = None
    just_before: Callable[[], None] = lambda: None
    """Called between the decision for a move and the move: for what others do at that moment."""

    def serving(self) -> Mapping[str, int | None]:
        return dict(self.aliases)

    def controller(self, alias: str) -> Controller:
        version = self.aliases[alias]
        return StaticController(OFF if version == OFF_VERSION else ACTION, version, alias)

    def promote(self, version: int | str, intent: Intent) -> PolicyChange:
        self._note("promote", version, intent)
        self.aliases["last-good"] = self.aliases["champion"]
        self.aliases["champion"] = int(version)
        self._end_candidacy(int(version))
        return PolicyChange(())

    def rollback(self, intent: Intent, to: int | str | None = None) -> PolicyChange:
        self._note("rollback", to, intent)
        if to is None:
            to = self.aliases["last-good"]
        self.aliases["champion"] = self.aliases[to] if isinstance(to, str) else to
        self.aliases["last-good"] = BASELINE
        self.automatic += 1
        return PolicyChange(())

    def withdraw(self, intent: Intent) -> PolicyChange:
        self._note("clear", None, intent)
        self.aliases.pop("candidate", None)
        return PolicyChange(())

    def quarantine(self, version: int | str, intent: Intent) -> PolicyChange:
        self._note("quarantine", version, intent)
        self.automatic += 1
        self._end_candidacy(int(version))
        return PolicyChange(())

    def freeze(self, intent: Intent) -> PolicyChange:
        self._note("freeze", None, intent)
        self.frozen = intent.reason
        return PolicyChange(())

    def flags(self) -> Flags:
        pin = None if self.pinned is None else Flag("now", "operator:ann", "", self.pinned)
        freeze = None if self.frozen is None else Flag("now", "operator:ann", self.frozen)
        return Flags(pin, freeze)

    def rolled_back_by_hand(self, version: int) -> bool:
        return version in self.by_hand

    def automatic_rollbacks(self, within_seconds: float) -> int:
        del within_seconds
        return self.automatic

    def _note(self, move: str, version: int | str | None, intent: Intent) -> None:
        self.just_before()
        if self.refuse is not None:
            raise self.refuse
        if not intent.expected.items() <= self.aliases.items():
            raise Overtaken("another version is there")
        if self.pinned is not None and move in ("promote", "rollback"):
            raise ChangeRefused("pinned")
        self.moves.append((move, version, intent))

    def _end_candidacy(self, version: int) -> None:
        if self.aliases.get("candidate") == version:
            del self.aliases["candidate"]


@dataclass
class RolloutRig:
    """A rollout and what it stands on."""

    policies: MemoryPolicies
    clock: StillClock
    rollout: Rollout

    def propose(self, version: int = CANDIDATE) -> None:
        """Let a version be the candidate."""
        self.policies.aliases["candidate"] = version
        self.rollout.pump()

    def contest(self, kind: Kind = "candidate") -> Contest:
        """The contest of that kind that the trials were told of."""
        return next(each for each in self.rollout.trials.plan.all_contests if each.kind == kind)

    def shadow(self, windows: int, *, agreed: bool = True) -> None:
        """Report windows at which the candidate was asked in vain."""
        contest = self.contest()
        for _ in range(windows):
            self.rollout.pump(Shadowed(contest, 1e-5, agreed=agreed))

    def observe(self, log_ratio: float, times: int = 1, kind: Kind = "candidate") -> None:
        """Report that many quads, or fewer where the contest ends before."""
        contest = self.contest(kind)
        for _ in range(times):
            self.rollout.pump(observed(contest, log_ratio))

    def trip(self, kind: Kind = "candidate") -> None:
        """Report a hard guard."""
        self.rollout.pump(Tripped(self.contest(kind), "exception", "its output is not finite"))

    def made(self) -> list[tuple[str, int | str | None]]:
        """The moves so far."""
        return [(move, version) for move, version, _ in self.policies.moves]


def observed(contest: Contest, log_ratio: float) -> Observed:
    """A quad of one sequence in which the control made 20 tokens in a second."""
    subject = Measured(18, 20, round(1e9 / 2.718281828**log_ratio))
    return Observed(contest, Observation(log_ratio, 1, subject=subject, control=Measured(18, 20, 10**9)), 1.0, 100.0)


def make_rollout(
    evidence: Evidence | None = None, policies: MemoryPolicies | None = None, **settings: object
) -> RolloutRig:
    """A rollout that is pumped by hand; without holdouts and shadow unless asked for."""
    values: dict[str, object] = {
        "holdout_last_good": 0.0,
        "holdout_baseline": 0.0,
        "holdout_off": 0.0,
        "shadow_windows": 0,
        "ramp": (0.5,),
        "gate_pairs": 1,
    }
    policies, clock = policies or MemoryPolicies(), StillClock()
    rollout = Rollout(
        policies,
        policies,
        RolloutSettings(**(values | settings)),  # type: ignore[arg-type]
        evidence or NoEvidence(),
        persistence=4,
        off_version=lambda: OFF_VERSION,
        rng=Random(0),
        clock=clock,
    )
    rollout.pump()
    return RolloutRig(policies, clock, rollout)
