"""Reads explorer windows from the experience log: only those that a learner may use, newest first, in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, case, func, select
from sqlalchemy.exc import DBAPIError

from respsd.control.router import LEARNER
from respsd.errors import StorageError
from respsd.experience.database import open_log_for_reading
from respsd.experience.models import RequestRow, TransitionRow
from respsd.tuning.windows import SpeedRows, Windows

_CHUNK_ROWS = 2048
"""Rows that are in memory as Python objects at one time."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The newest request that an update has seen. The time tells another log with the same keys from this one."""

    request_row: int = 0
    finished_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which explorer windows to read."""

    schema_fingerprint: str
    width: int
    table_fingerprint: str
    actions: int
    versions: Collection[int]
    """Versions that may have drawn the action; windows of others are too old."""
    held_out: bool
    """Read the requests that no version is trained on, or the others."""
    held_out_every: int
    """One request in so many is held out."""
    after: Watermark = Watermark()
    limit: int = 1 << 14


@dataclass(frozen=True, slots=True)
class Reading:
    """Windows, and how many there were that may not be used, by reason."""

    windows: Windows
    left_out: Counter[str]


class ExperienceSource(Protocol):
    """What an update reads from. Every method raises StorageError where the log cannot be read."""

    def newest(self) -> Watermark:
        """Of the newest request in the log."""
        ...

    def read(self, wanted: Wanted) -> Reading:
        """Explorer windows, at most `wanted.limit` of them, the newest."""
        ...

    def speeds(self, version: int | None, limit: int) -> SpeedRows:
        """The newest windows that a version chose; None: that anyone chose."""
        ...


class LoggedExperience:
    """The experience log of a daemon, running or not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self) -> Watermark:
        """Of the newest request in the log."""
        query = select(RequestRow.id, RequestRow.finished_at_ns).order_by(RequestRow.id.desc()).limit(1)
        row = self._with(lambda connection: connection.execute(query).one_or_none())
        return Watermark() if row is None else Watermark(row[0], row[1])

    def read(self, wanted: Wanted) -> Reading:
        """Explorer windows, at most `wanted.limit` of them, the newest."""
        return self._with(lambda connection: _read(connection, wanted))

    def speeds(self, version: int | None, limit: int) -> SpeedRows:
        """The newest windows that a version chose; None: that anyone chose."""
        columns = (
            TransitionRow.request_row,
            TransitionRow.committed_tokens,
            TransitionRow.steps,
            _decode_ns() / 1e9,
            TransitionRow.context_length,
            TransitionRow.batch_size,
        )
        query = select(*columns).where(_decode_ns() > 0, TransitionRow.committed_tokens > 0)
        if version is not None:
            query = query.where(TransitionRow.policy_version == version)
        rows = self._with(lambda c: c.execute(query.order_by(TransitionRow.id.desc()).limit(limit)).all())
        table = np.array([tuple(row) for row in rows], np.float64).reshape(len(rows), len(columns))
        whole = table.astype(np.int64)
        return SpeedRows(whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3], whole[:, 4], table[:, 5])

    def _with(self, ask: Callable[[Connection], T]) -> T:
        """One short read transaction: everything that it returns is in memory."""
        engine = open_log_for_reading(self._path)
        try:
            with engine.begin() as connection:
                return ask(connection)
        except DBAPIError as fault:
            raise StorageError(f"{self._path}: {fault.orig}") from fault
        finally:
            engine.dispose()


def count_new_windows(path: Path, after: Watermark) -> int:
    """Explorer windows that were logged since an update; 0 where there is no log yet.

    Raises StorageError where the log cannot be read.
    """
    if not path.exists():
        return 0
    source = LoggedExperience(path)

    def count(connection: Connection) -> int:
        rows = select(func.count()).select_from(TransitionRow).where(_new(connection, after))
        return connection.execute(rows).scalar_one()

    return source._with(count)


def _decode_ns() -> ColumnElement[int]:
    return TransitionRow.draft_ns + TransitionRow.verify_ns + TransitionRow.other_ns


def _new(connection: Connection, after: Watermark) -> ColumnElement[bool]:
    """Explorer windows behind the watermark.

    A log that was damaged and begun anew counts its requests from 1 again: there everything is new.
    """
    seen = select(RequestRow.finished_at_ns).where(RequestRow.id == after.request_row)
    found = connection.execute(seen).scalar_one_or_none()
    newest = connection.execute(select(func.max(RequestRow.id))).scalar_one() or 0
    is_another_log = newest < after.request_row if found is None else found != after.finished_at_ns
    row = 0 if is_another_log else after.request_row
    return and_(TransitionRow.arm == LEARNER, TransitionRow.request_row > row)


def _read(connection: Connection, wanted: Wanted) -> Reading:
    held_out = TransitionRow.request_row % wanted.held_out_every == 0
    new = and_(_new(connection, wanted.after), held_out if wanted.held_out else ~held_out)
    reason = _reason(connection, wanted)
    counts = select(reason, func.count()).join(RequestRow, RequestRow.id == TransitionRow.request_row)
    left_out = Counter({why: n for why, n in connection.execute(counts.where(new).group_by(reason)) if why})

    rows = (
        select(
            TransitionRow.request_row,
            TransitionRow.window,
            TransitionRow.observation,
            TransitionRow.action_index,
            TransitionRow.log_prob,
            TransitionRow.policy_version,
            TransitionRow.committed_tokens,
            TransitionRow.steps,
            _decode_ns() / 1e9,
            TransitionRow.context_length,
            TransitionRow.batch_size,
        )
        .join(RequestRow, RequestRow.id == TransitionRow.request_row)
        .where(new, reason == "")
        .order_by(TransitionRow.request_row.desc(), TransitionRow.window)
        .limit(wanted.limit)
    )
    usable = connection.execute(select(func.count()).select_from(rows.limit(None).subquery())).scalar_one()
    result = connection.execution_options(stream_results=True).execute(rows)
    parts = [_columns(chunk, wanted, left_out) for chunk in result.partitions(_CHUNK_ROWS)]
    left_out["over_limit"] += max(usable - wanted.limit, 0)
    return Reading(Windows.join(parts, wanted.width), +left_out)


def _reason(connection: Connection, wanted: Wanted) -> ColumnElement[str]:
    """Why a window may not be used; empty where it may."""
    engine = (RequestRow.target, RequestRow.drafter, RequestRow.dtype, RequestRow.device, RequestRow.engine_config_hash)
    newest = connection.execute(select(*engine).order_by(RequestRow.id.desc()).limit(1)).one_or_none()
    same_engine = and_(
        *(column.is_not_distinct_from(value) for column, value in zip(engine, newest or (), strict=False))
    )
    return case(
        (TransitionRow.observation_schema != wanted.schema_fingerprint, "other_observation_schema"),
        (TransitionRow.table_fingerprint.is_distinct_from(wanted.table_fingerprint), "other_action_table"),
        (TransitionRow.action_index.is_(None), "no_action_index"),
        (~same_engine, "other_engine"),
        (TransitionRow.policy_version.is_(None), "too_old"),
        (TransitionRow.policy_version.not_in(sorted(wanted.versions)), "too_old"),
        # a step that ran less than was asked for says little about what was asked for
        (TransitionRow.degraded_steps * 2 > TransitionRow.steps, "degraded"),
        (_decode_ns() <= 0, "no_time_measured"),
        (TransitionRow.committed_tokens <= 0, "no_token_committed"),
        else_="",
    )


def _columns(rows: Sequence[Any], wanted: Wanted, left_out: Counter[str]) -> Windows:
    """A chunk as columns; what is no number, or no action of the table, is left out."""
    sound = [row for row in rows if len(row.observation) == 4 * wanted.width]
    left_out["malformed"] += len(rows) - len(sound)
    if not sound:
        return Windows.empty(wanted.width)
    lane, number, blobs, action, log_prob, version, tokens, steps, seconds, context, batch = zip(*sound, strict=True)
    observation = np.frombuffer(b"".join(blobs), "<f4").reshape(len(sound), wanted.width).astype(np.float32)
    windows = Windows(
        lane=np.array(lane, np.int64),
        number=np.array(number, np.int64),
        observation=observation,
        action=np.array(action, np.int64),
        log_prob=np.array(log_prob, np.float64),
        version=np.array(version, np.int64),
        committed_tokens=np.array(tokens, np.int64),
        steps=np.array(steps, np.int64),
        seconds=np.array(seconds, np.float64),
        context_length=np.array(context, np.int64),
        batch_size=np.array(batch, np.float64),
    )
    finite = np.isfinite(observation).all(axis=1) & np.isfinite(windows.log_prob) & np.isfinite(windows.batch_size)
    good = finite & (windows.log_prob <= 0) & (windows.action >= 0) & (windows.action < wanted.actions)
    left_out["malformed"] += int((~good).sum())
    return windows.select(good)
