"""What happened between two readings of a daemon's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from respsd_client import DaemonStatus


@dataclass(frozen=True, slots=True)
class ArmRate:
    """One arm's speed."""

    tokens_per_second: float
    """Of the whole daemon."""
    sequence_tokens_per_second: float | None
    """Of one sequence while it decodes, which is what policies are judged by; None where none did."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Differences of two readings, by time."""

    seconds: float
    tokens_per_second: float
    arms: Mapping[str, ArmRate]
    acceptance: float | None
    """Kept share of the drafted tokens; None where nothing was drafted."""
    actions: Mapping[str, float]
    """Share of the steps, the most frequent action first."""
    requests_per_second: Mapping[str, float]
    """By the status code's name."""
    switches_per_second: float
    """How often a sequence went on under another action."""


def rates(before: DaemonStatus, after: DaemonStatus, seconds: float) -> Rates:
    """Compare two readings that lie `seconds` apart; a daemon that started anew between them counts from zero."""
    old = before.totals if before.started == after.started else None
    new = after.totals
    arms = {}
    for arm, total in sorted(new.arms.items()):
        earlier = old.arms.get(arm) if old is not None else None
        tokens = total.tokens - (earlier.tokens if earlier else 0)
        decoding = total.decode_seconds - (earlier.decode_seconds if earlier else 0.0)
        arms[arm] = ArmRate(tokens / seconds, tokens / decoding if decoding > 0 else None)
    drafted = new.drafted_tokens - (old.drafted_tokens if old else 0)
    accepted = new.accepted_tokens - (old.accepted_tokens if old else 0)
    steps = _differences(new.actions, old.actions if old else {})
    ended = _differences(new.requests, old.requests if old else {})
    all_steps = sum(steps.values())
    return Rates(
        seconds=seconds,
        tokens_per_second=sum(arm.tokens_per_second for arm in arms.values()),
        arms=arms,
        acceptance=accepted / drafted if drafted > 0 else None,
        actions={
            action: count / all_steps for action, count in sorted(steps.items(), key=lambda each: (-each[1], each[0]))
        },
        requests_per_second={code: count / seconds for code, count in sorted(ended.items())},
        switches_per_second=(new.action_switches - (old.action_switches if old else 0)) / seconds,
    )


def _differences(new: Mapping[str, int], old: Mapping[str, int]) -> dict[str, int]:
    """What was added, without what was not."""
    added = {name: count - old.get(name, 0) for name, count in new.items()}
    return {name: count for name, count in added.items() if count > 0}
