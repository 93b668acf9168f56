"""The evidence of rounds in transitions.db, so that a restart goes on with it. Bounded: old rounds are deleted,
but not those that run, nor those whose error probability still counts in the day's.

A log that cannot be written costs the memory over a restart and nothing else: the round goes on in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import ColumnElement, Executable, and_, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from respsd.errors import StorageError
from respsd.experience.database import OpenLog
from respsd.experience.models import RolloutPair, RolloutRound
from respsd.rollout.budget import DAY_NS
from respsd.rollout.contest import Contest
from respsd.rollout.pairing import Measured, Observation
from respsd.rollout.round import Round

KEPT_ROUNDS = 200

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An observation as it was recorded."""

    observation: Observation
    batch_size: float
    context_length: float


@dataclass(frozen=True, slots=True)
class OpenRound:
    """A round that had not ended."""

    id: int
    started_at_ns: int
    alpha: float
    stage: int
    pairs: tuple[Recorded, ...]


class Evidence(Protocol):
    """Keeps what rounds found. Nothing here raises: what cannot be kept is said once and lost."""

    def resume(self, contest: Contest) -> OpenRound | None:
        """The open round of the same kind and versions on the same engine settings; None where there is none."""
        ...

    def begin(self, round_: Round) -> None:
        """Record a new round, and give it its id."""
        ...

    def add(self, round_: Round, recorded: Recorded, at_ns: int) -> None:
        """Record an observation."""
        ...

    def reached(self, round_: Round) -> None:
        """Record the round's stage."""
        ...

    def end(self, round_: Round, verdict: str, at_ns: int) -> None:
        """Close the round."""
        ...

    def spent(self, since_ns: int, *, evaluations: bool) -> list[tuple[int, float]]:
        """When which alpha went to rounds: evaluations of candidates, or holdouts."""
        ...

    def last_rollback_ns(self) -> int | None:
        """When a round last ended in a rollback."""
        ...


class NoEvidence:
    """Keeps nothing: without an experience log there is nothing to resume from."""

    def resume(self, contest: Contest) -> OpenRound | None:
        """Nothing."""
        del contest
        return None

    def begin(self, round_: Round) -> None:
        """Nothing."""

    def add(self, round_: Round, recorded: Recorded, at_ns: int) -> None:
        """Nothing."""

    def reached(self, round_: Round) -> None:
        """Nothing."""

    def end(self, round_: Round, verdict: str, at_ns: int) -> None:
        """Nothing."""

    def spent(self, since_ns: int, *, evaluations: bool) -> list[tuple[int, float]]:
        """Nothing."""
        del since_ns, evaluations
        return []

    def last_rollback_ns(self) -> int | None:
        """Never."""
        return None


class EvidenceLog:
    """Evidence in the experience log. Used by one thread."""

    def __init__(self, open_log: Callable[[], OpenLog], engine_config_hash: str) -> None:
        """:param open_log: opens the log; called when it is first needed, and again after it was moved away"""
        self._open_log = open_log
        self._engine_config_hash = engine_config_hash
        self._log: OpenLog | None = None
        self._fault: str | None = None

    def resume(self, contest: Contest) -> OpenRound | None:
        """See `Evidence`. Other open rounds of the kind are closed."""
        return self._try(lambda log_: self._resume(log_, contest), None)

    def begin(self, round_: Round) -> None:
        """See `Evidence`; the oldest rounds beyond the bound go, once they ended and a day has passed."""
        self._try(lambda log_: self._begin(log_, round_), None)

    def add(self, round_: Round, recorded: Recorded, at_ns: int) -> None:
        """See `Evidence`."""
        if round_.id is None:
            return
        seen = recorded.observation
        values = {
            "round_id": round_.id,
            "observed_at_ns": at_ns,
            "log_ratio": seen.log_ratio,
            "subject_tokens": seen.subject.tokens,
            "subject_ns": seen.subject.ns,
            "control_tokens": seen.control.tokens,
            "control_ns": seen.control.ns,
            "sequences": seen.sequences,
            "batch_size": recorded.batch_size,
            "context_length": recorded.context_length,
        }
        self._try(lambda log_: _execute(log_, insert(RolloutPair).values(values)), None)

    def reached(self, round_: Round) -> None:
        """See `Evidence`."""
        self._update(round_, {"stage": round_.stage})

    def end(self, round_: Round, verdict: str, at_ns: int) -> None:
        """See `Evidence`."""
        self._update(round_, {"ended_at_ns": at_ns, "verdict": verdict})

    def spent(self, since_ns: int, *, evaluations: bool) -> list[tuple[int, float]]:
        """See `Evidence`."""
        kind = RolloutRound.kind
        query = (
            select(RolloutRound.started_at_ns, RolloutRound.alpha)
            .where(RolloutRound.started_at_ns > since_ns)
            .where(kind == "candidate" if evaluations else kind != "candidate")
            .order_by(RolloutRound.started_at_ns)
        )
        return self._try(lambda log_: [(at, alpha) for at, alpha in _rows(log_, query)], [])

    def last_rollback_ns(self) -> int | None:
        """See `Evidence`."""
        query = (
            select(RolloutRound.ended_at_ns)
            .where(RolloutRound.verdict == "rollback")
            .order_by(RolloutRound.ended_at_ns.desc())
            .limit(1)
        )
        return self._try(lambda log_: next((at for (at,) in _rows(log_, query)), None), None)

    def close(self) -> None:
        """Let go of the file."""
        if self._log is not None:
            self._log.engine.dispose()
            self._log = None

    def _update(self, round_: Round, values: dict[str, object]) -> None:
        if round_.id is not None:
            statement = update(RolloutRound).where(RolloutRound.id == round_.id).values(values)
            self._try(lambda log_: _execute(log_, statement), None)

    def _resume(self, log_: OpenLog, contest: Contest) -> OpenRound | None:
        table = RolloutRound
        still_open = select(table).where(table.kind == contest.kind, table.ended_at_ns.is_(None))
        found = None
        for row in _rows(log_, still_open.order_by(table.id)):
            same = (row.subject_version, row.control_version, row.engine_config_hash) == (
                contest.subject.version,
                contest.control.version,
                self._engine_config_hash,
            )
            if same:
                found = row
        ended = update(table).where(table.kind == contest.kind, table.ended_at_ns.is_(None))
        ended = ended if found is None else ended.where(table.id != found.id)
        _execute(log_, ended.values(ended_at_ns=table.started_at_ns, verdict="superseded"))
        if found is None:
            return None
        pairs = _rows(log_, select(RolloutPair).where(RolloutPair.round_id == found.id).order_by(RolloutPair.id))
        return OpenRound(found.id, found.started_at_ns, found.alpha, found.stage, tuple(map(_recorded, pairs)))

    def _begin(self, log_: OpenLog, round_: Round) -> None:
        contest = round_.contest
        values = {
            "started_at_ns": round_.started_at_ns,
            "kind": contest.kind,
            "subject_version": contest.subject.version,
            "control_version": contest.control.version,
            "engine_config_hash": self._engine_config_hash,
            "alpha": round_.judge.settings.alpha,
            "stage": round_.stage,
        }
        with log_.engine.begin() as connection:
            key = connection.execute(insert(RolloutRound).values(values)).inserted_primary_key
            old = list(connection.execute(select(RolloutRound.id).where(_is_old(round_.started_at_ns))).scalars())
            connection.execute(delete(RolloutPair).where(RolloutPair.round_id.in_(old)))
            connection.execute(delete(RolloutRound).where(RolloutRound.id.in_(old)))
        round_.id = None if key is None else int(key[0])

    def _try(self, work: Callable[[OpenLog], T], otherwise: T) -> T:
        """Do it; where the log fails, say so once and go on without."""
        try:
            found = work(self._opened())
        except (StorageError, DBAPIError) as fault:
            text = str(getattr(fault, "orig", fault))
            if text != self._fault:
                log.error("rollout_evidence_not_kept", fault=text)
            self._fault = text
            self.close()
            return otherwise
        self._fault = None
        return found

    def _opened(self) -> OpenLog:
        if self._log is not None and not self._log.is_in_place():
            self.close()
        if self._log is None:
            self._log = self._open_log()
        return self._log


def _is_old(now_ns: int) -> ColumnElement[bool]:
    """Of rounds that ended, beyond the bound, whose error probability the day's no longer counts."""
    kept = select(RolloutRound.id).order_by(RolloutRound.id.desc()).limit(KEPT_ROUNDS)
    return and_(
        RolloutRound.id.not_in(kept),
        RolloutRound.ended_at_ns.is_not(None),
        RolloutRound.started_at_ns <= now_ns - DAY_NS,
    )


def _execute(log_: OpenLog, statement: Executable) -> None:
    with log_.engine.begin() as connection:
        connection.execute(statement)


def _rows(log_: OpenLog, query: Executable) -> list[Any]:
    with log_.engine.begin() as connection:
        return list(connection.execute(query).all())


def _recorded(row: Any) -> Recorded:
    subject = Measured(0, row.subject_tokens, row.subject_ns)
    control = Measured(0, row.control_tokens, row.control_ns)
    observation = Observation(row.log_ratio, row.sequences, subject=subject, control=control)
    return Recorded(observation, row.batch_size, row.context_length)
