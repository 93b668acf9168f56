"""Tokens per second by arm over time, from the experience log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from respsd.errors import StorageError
from respsd.experience.database import open_log_for_reading
from respsd.experience.models import TransitionRow

_BINS = 80


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """One arm in one stretch of time."""

    at: datetime
    """The stretch's middle, UTC."""
    arm: str
    tokens_per_second: float
    windows: int


def speed_history(path: Path, bins: int = _BINS) -> list[SpeedPoint]:
    """Committed tokens over seconds of decoding, by arm, in `bins` equal stretches of the log's time, in order of time.

    Raises StorageError where the log cannot be read.
    """
    row = TransitionRow
    decode = row.draft_ns + row.verify_ns + row.other_ns
    engine = open_log_for_reading(path)
    try:
        with engine.begin() as connection:
            first, last = connection.execute(select(func.min(row.opened_at_ns), func.max(row.opened_at_ns))).one()
            if not connection.execute(select(func.count()).select_from(row)).scalar_one():
                return []
            width = max((last - first) // bins + 1, 1)
            stretch = (row.opened_at_ns - first) // width
            query = (
                select(stretch, row.arm, func.sum(row.committed_tokens), func.sum(decode), func.count())
                .group_by(stretch, row.arm)
                .order_by(stretch, row.arm)
            )
            rows = connection.execute(query).all()
    except DBAPIError as fault:
        raise StorageError(f"{path}: {fault.orig}") from fault
    finally:
        engine.dispose()
    return [
        SpeedPoint(_moment(first + (number + 0.5) * width), arm, int(tokens) * 1e9 / int(ns), windows)
        for number, arm, tokens, ns, windows in rows
        if ns
    ]


def _moment(ns: float) -> datetime:
    return datetime.fromtimestamp(ns / 1e9, UTC)
