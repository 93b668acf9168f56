"""Questions to the experience log that need no learner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from respsd.errors import StorageError
from respsd.experience.database import fault_named, open_log_for_reading
from respsd.experience.models import RequestRow, TransitionRow

EXPLORERS_ARM = "learner"
"""Arm of explorers' windows, which updates read."""


def tokens_per_second_by_version(path: Path) -> dict[int, float]:
    """Committed tokens over seconds of decoding, by policy version, over every logged window.

    Versions without a window are left out. Raises StorageError where the log cannot be read.
    """
    decode = TransitionRow.draft_ns + TransitionRow.verify_ns + TransitionRow.other_ns
    query = (
        select(TransitionRow.policy_version, func.sum(TransitionRow.committed_tokens), func.sum(decode))
        .where(TransitionRow.policy_version.is_not(None))
        .group_by(TransitionRow.policy_version)
    )
    engine = open_log_for_reading(path)
    try:
        with engine.begin() as connection:
            rows = connection.execute(query).all()
    except DBAPIError as fault:
        raise StorageError(f"{path}: {fault.orig}") from fault
    finally:
        engine.dispose()
    return {
        version: int(committed) * 1e9 / int(decode)
        for version, committed, decode in rows
        if version is not None and decode
    }


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest request that an update has read; at first none."""

    request_row: int = 0
    finished_at_ns: int = 0
    """Tells another log with the same keys from this one."""


def last_spent_request(path: Path, seen: Seen, unread_windows: int) -> int:
    """The newest request in the log that no update needs any more; 0 where there is none.

    It is the last that an update has read, or a later one where there are more than `unread_windows` explorers' windows
    behind it: an update reads no more. A log that was damaged and begun anew counts its requests from 1 again: nothing
    of it was read. Raises StorageError where the log cannot be read.
    """
    engine = open_log_for_reading(path)
    try:
        with engine.begin() as connection:
            finished = select(RequestRow.finished_at_ns).where(RequestRow.id == seen.request_row)
            found = connection.execute(finished).scalar_one_or_none()
            newest = connection.execute(select(func.max(RequestRow.id))).scalar_one() or 0
            explorers = select(TransitionRow.request_row).where(TransitionRow.arm == EXPLORERS_ARM)
            surplus = explorers.order_by(TransitionRow.request_row.desc()).offset(unread_windows).limit(1)
            surplus_row = connection.execute(surplus).scalar_one_or_none() or 0
    except DBAPIError as fault:
        raise fault_named(path, fault) from fault
    finally:
        engine.dispose()
    is_another_log = newest < seen.request_row if found is None else found != seen.finished_at_ns
    return max(0 if is_another_log else seen.request_row, surplus_row)
