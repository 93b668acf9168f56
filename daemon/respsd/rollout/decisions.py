"""What a verdict does: the alias that moves, the words that say why, the figures that it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from policy_store import Flags
from respsd.control.policy_change import Intent
from respsd.control.router import BASELINE, CANDIDATE, CHAMPION
from respsd.errors import RespsdError
from respsd.rollout.budget import DAY_NS
from respsd.rollout.contest import Contest
from respsd.rollout.guards import Guard
from respsd.rollout.moves import PolicyMoves
from respsd.rollout.round import Round
from respsd.settings_learning import RolloutSettings

ACTOR = "rollout"
"""Who the audit log says made these changes."""

log = structlog.get_logger(__name__)


class Decisions:
    """Carries verdicts out. Methods raise what `PolicyMoves` raises, and say in a sentence what they did.

    Each move names the versions that it was decided for, so that it does not befall those that came after them.
    """

    def __init__(self, moves: PolicyMoves, settings: RolloutSettings, off_version: Callable[[], int]) -> None:
        self._moves = moves
        self._settings = settings
        self._off_version = off_version

    def promote(self, round_: Round) -> str:
        """The candidate becomes the champion."""
        contest = round_.contest
        assert contest.subject.version is not None
        reason = f"version {contest.subject.version} {_measured(round_)}; it is not slower by the margin"
        self._moves.promote(contest.subject.version, self._intent(round_, "promote", reason))
        return reason

    def roll_back(self, round_: Round, why: str, detail: str | None) -> str:
        """The subject goes: a candidate is quarantined, a champion makes room for what beat it."""
        loser = round_.contest.subject.version
        if detail is None:
            reason = f"version {loser} {_measured(round_)}; it is slower"
        else:
            reason = f"version {loser} was stopped by a guard ({why}): {detail}"
        intent = self._intent(round_, "rollback", reason, guard=None if detail is None else why)
        assert loser is not None
        match round_.contest.kind:
            case "candidate":
                self._moves.quarantine(loser, intent)
            case "last-good":
                self._moves.rollback(intent, to=round_.contest.control.version)
            case "baseline":
                self._moves.rollback(intent, to=BASELINE)
            case "off" if detail is None:
                return self._switch_off(intent)
            case "off":  # a policy that fails says nothing against speculation
                self._moves.rollback(intent)
        return reason

    def give_up(self, round_: Round) -> str:
        """The candidate was measured to the cap without a verdict: the champion stays."""
        reason = f"version {round_.contest.subject.version} {_measured(round_)}; inconclusive at the cap"
        self._moves.withdraw(self._intent(round_, "inconclusive", reason))
        return reason

    def drop_champion(self, version: int, guard: Guard, detail: str) -> None:
        """A champion whose policy fails makes room for last-good."""
        figures = {"decision": "rollback", "kind": "champion", "subject": version, "guard": guard, "detail": detail}
        reason = f"version {version} was stopped by a guard ({guard}): {detail}"
        self._moves.rollback(Intent(ACTOR, reason, figures, expected={CHAMPION: version}))
        log.warning("rollout_champion_dropped", version=version, guard=guard, detail=detail)

    def stand_down(self, round_: Round, candidate: int | None) -> None:
        """Somebody else moved the champion while a candidate was measured against it: they have the last word."""
        subject = round_.contest.subject.version
        log.info("rollout_superseded", contest=str(round_.contest), candidate=candidate)
        if candidate != subject:
            return
        reason = f"the champion was changed while version {subject} was compared with it, which ends the comparison"
        try:
            intent = self._intent(round_, "superseded", reason)
            self._moves.withdraw(replace(intent, expected={CANDIDATE: subject}))
        except RespsdError as fault:
            log.warning("rollout_move_refused", verdict="superseded", fault=str(fault))

    def why_not(self, contest: Contest) -> str | None:
        """What forbids the evaluation of a candidate; None where nothing does."""
        version = contest.subject.version
        try:
            flagged = _flagged(self._moves.flags())
            if flagged is not None:
                return flagged
            if version is None or self._moves.rolled_back_by_hand(version):
                return f"version {version} was rolled back by hand; promote it by hand to use it again"
        except RespsdError as fault:
            return str(fault)
        return None

    def why_end(self) -> str | None:
        """What ends an evaluation under way; None where nothing does, or where nobody can tell now."""
        try:
            return _flagged(self._moves.flags())
        except RespsdError as fault:
            log.warning("rollout_flags_unknown", fault=str(fault))
            return None

    def freeze_after_too_many(self) -> None:
        """Stop learning where a day has seen too many automatic rollbacks."""
        try:
            rollbacks = self._moves.automatic_rollbacks(DAY_NS / 1e9)
            if rollbacks < self._settings.rollbacks_per_day or self._moves.flags().freeze is not None:
                return
            reason = f"{rollbacks} automatic rollbacks within a day"
            self._moves.freeze(Intent(ACTOR, reason, {"decision": "freeze", "rollbacks": rollbacks}))
        except RespsdError as fault:
            log.warning("rollout_freeze_refused", fault=str(fault))
        else:
            log.warning("learning_frozen", reason=reason)

    def _switch_off(self, intent: Intent) -> str:
        """Speculation does not pay: plain decoding becomes the champion, and the former one may come back."""
        reason = f"{intent.reason} than plain decoding: speculation is off"
        version = self._off_version()
        evidence = {**(intent.evidence or {}), "decision": "speculation-off"}
        self._moves.promote(version, replace(intent, reason=reason, evidence=evidence))
        log.warning("speculation_off", reason=reason)
        return reason

    def _intent(self, round_: Round, decision: str, reason: str, guard: str | None = None) -> Intent:
        figures = {"decision": decision, **round_.figures()}
        if guard is not None:
            figures["guard"] = guard
        return Intent(ACTOR, reason, figures, expected=round_.contest.aliases)


def _flagged(flags: Flags) -> str | None:
    """Which word of a person's, or of too many rollbacks, keeps candidates from being evaluated."""
    if flags.freeze is not None:
        return f"learning is frozen: {flags.freeze.reason or 'without a reason'}"
    if flags.pin is not None:
        return f"version {flags.pin.version} is pinned as the champion"
    return None


def _measured(round_: Round) -> str:
    """`measures -5.1 % against champion 3 (between -9.0 % and -1.2 %, 140 pairs)`."""
    figures = round_.figures()
    control = round_.contest.control
    against = f"{control.name} {'' if control.version is None else control.version}".strip()
    mean, low, high = (_percent(figures[name]) for name in ("mean", "lower", "upper"))
    return f"measures {mean} against {against} (between {low} and {high}, {figures['pairs']} pairs)"


def _percent(share: object) -> str:
    assert isinstance(share, float)
    return f"{share:+.1%}".replace("%", " %")
