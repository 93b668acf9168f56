"""Questions to the experience log that need no learner."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from respsd.errors import StorageError
from respsd.experience.database import open_log_for_reading
from respsd.experience.models import TransitionRow


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
