"""What the experience log may hold at this moment, out of the settings and of how far updates have read it."""

from __future__ import annotations

import structlog

from policy_store import PolicyStore, VersionCorrupt, VersionUnknown
from respsd.experience.queries import Seen, last_spent_request
from respsd.experience.retention import Limits
from respsd.paths import TRANSITIONS
from respsd.settings import Settings
from respsd.tuning.lineage import learner_watermark

log = structlog.get_logger(__name__)

_DAY_NS = 24 * 3600 * 1_000_000_000
_SPARED_UPDATES = 2
"""Unread windows are kept for so many updates: one reads the newest, and compares policies on others besides."""


def limits_now(settings: Settings, seen: Seen | None, now_ns: int) -> Limits:
    """The limits now; `seen` is None where no update will read the log. Raises StorageError."""
    retention = settings.retention
    age = retention.max_age_days
    unread_after = None
    if seen is not None and settings.learning.enabled:
        spared = _SPARED_UPDATES * settings.learning.max_windows
        unread_after = last_spent_request(settings.state_dir / TRANSITIONS, seen, spared)
    return Limits(
        finished_before_ns=None if age is None else now_ns - round(age * _DAY_NS),
        windows=retention.max_rows,
        size_bytes=retention.max_bytes,
        unread_after=unread_after,
    )


def seen_by_learner(store: PolicyStore) -> Seen | None:
    """How far the store's learner and its ancestors have read the log; None where its version is damaged or gone.

    No update goes on from such a learner, so that nothing is unread, and the log must stay within its limits all the
    same. Raises StoreError.
    """
    try:
        watermark = learner_watermark(store)
    except (VersionCorrupt, VersionUnknown) as fault:
        log.warning("learner_unreadable", fault=str(fault), instead="unread windows are not spared")
        return None
    return Seen(watermark.request_row, watermark.finished_at_ns)
