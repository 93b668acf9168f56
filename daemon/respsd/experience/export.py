"""The experience log as lines of JSON: one window a line, with its request's columns, oldest first."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select, select
from sqlalchemy.exc import DBAPIError

from respsd.experience.database import fault_named, open_log_for_reading
from respsd.experience.models import RequestRow, TransitionRow

_CHUNK_ROWS = 500
_LEFT_OUT = frozenset({"id", "request_row"})
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Selection:
    """Which windows; None is any."""

    arm: str | None = None
    policy_version: int | None = None
    finished_since_ns: int | None = None


def export_lines(path: Path, selection: Selection) -> Iterator[str]:
    """Windows as JSON objects, each with a line's end; names and units are the columns'.

    Every chunk of rows is read in a short transaction of its own, so that the log's write-ahead file never has to wait
    for the reader of the lines. `observation` is a list of numbers, null for what is not finite.

    Raises StorageError, or DatabaseDamaged.
    """
    engine = open_log_for_reading(path)
    try:
        after = 0
        while True:
            with engine.begin() as connection:
                rows = connection.execute(_query(selection, after)).all()
            if not rows:
                return
            yield from (_line(row) for row in rows)
            after = rows[-1].window_key
    except DBAPIError as fault:
        raise fault_named(path, fault) from fault
    finally:
        engine.dispose()


def _query(selection: Selection, after: int) -> Select[Any]:
    window = [column for column in TransitionRow.__table__.columns if column.name not in _LEFT_OUT]
    request = [column for column in RequestRow.__table__.columns if column.name not in _LEFT_OUT]
    shared = {column.name for column in window} & {column.name for column in request}
    query = (
        select(
            TransitionRow.id.label("window_key"),
            *(column.label(f"request_{column.name}") if column.name in shared else column for column in request),
            *window,
        )
        .join(RequestRow, RequestRow.id == TransitionRow.request_row)
        .where(TransitionRow.id > after)
        .order_by(TransitionRow.id)
        .limit(_CHUNK_ROWS)
    )
    if selection.arm is not None:
        query = query.where(TransitionRow.arm == selection.arm)
    if selection.policy_version is not None:
        query = query.where(TransitionRow.policy_version == selection.policy_version)
    if selection.finished_since_ns is not None:
        query = query.where(RequestRow.finished_at_ns >= selection.finished_since_ns)
    return query


def _line(row: Row[Any]) -> str:
    document = dict(row._mapping)
    del document["window_key"]
    blob = document["observation"]
    numbers = struct.unpack(f"<{len(blob) // _FLOAT_BYTES}f", blob)
    document["observation"] = [number if math.isfinite(number) else None for number in numbers]
    return json.dumps(document, allow_nan=False) + "\n"
