"""The whole loop on live traffic: from a champion that is too large, by exploring, learning and rolling out.

The settings below make it fast enough to watch: many explorers, short waits, small updates. They change how often the
loop turns, not what it does. What the environment sets of them already stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy_store import HistoryQuery, PolicyStore, StoreError
from policy_store.audit import Event
from respsd.bench.live.daemon import live_daemon
from respsd.bench.live.traffic import Answered, Traffic, chat_prompts
from respsd.clock import SystemClock
from respsd.control.action import EAGLE3, Action
from respsd.control.bootstrap import EAGLE3_ALIAS
from respsd.control.router import CHAMPION
from respsd.errors import SettingsError, StorageError
from respsd.paths import POLICIES
from respsd.tuning.ledger import FILE, UpdateLedger
from respsd_client import Client

ACCELERATED: Mapping[str, str] = {
    "RESPSD_EXPLORATION__SHARE": "0.4",
    "RESPSD_LEARNING__INTERVAL_SECONDS": "5",
    "RESPSD_LEARNING__MIN_NEW_WINDOWS": "128",
    "RESPSD_SCHEDULE__RECHECK_SECONDS": "5",
    "RESPSD_ROLLOUT__COOLDOWN_SECONDS": "5",
    "RESPSD_ROLLOUT__ROLLBACKS_PER_DAY": "1000",
    "RESPSD_ROLLOUT__ALPHA_PER_DAY": "0.5",
    "RESPSD_ROLLOUT__MAX_PAIRS": "300",
}
_SLICES = 12
_MOVES: tuple[Event, ...] = ("promote", "rollback", "quarantine")


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the traffic."""

    from_seconds: float
    tokens_per_second: float
    """Of all streams together, the answers that ended in it."""


@dataclass(frozen=True, slots=True)
class Move:
    """The champion was moved, or a version went for good."""

    at: str
    event: str
    from_version: int | None
    to_version: int | None
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class LiveReport:
    """What came of the traffic."""

    seconds: float
    requests: int
    tokens: int
    slices: tuple[Slice, ...]
    windows: int
    """Trained on, over all updates."""
    updates: Mapping[str, int]
    """By how they ended."""
    moves: tuple[Move, ...]
    champion: int
    """At the end."""
    champion_action: Action | None
    """Of a constant one."""


def run_live(
    flags: Sequence[str],
    state_dir: Path,
    texts: Sequence[str],
    *,
    seconds: float,
    streams: int,
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> LiveReport:
    """Serve `texts` again and again for so long, and see what the loop makes of it.

    A new state folder starts at EAGLE-3's published tree as the champion; one that has been there goes on where it was.

    :param flags: of `respsd serve`, which name the models
    :param progress: called after each answer
    """
    is_new = not (state_dir / POLICIES).exists()
    with live_daemon(flags, state_dir, ACCELERATED) as address, Client(address) as client:
        if is_new:
            _begin(client)
        options = {"max_new_tokens": max_new_tokens}
        traffic = Traffic(client, chat_prompts(client, texts), options, streams, progress)  # type: ignore[arg-type]
        until = time.monotonic() + seconds
        answered = traffic.until(lambda: time.monotonic() >= until)
    return _report(state_dir, answered)


def _begin(client: Client) -> None:
    if not any(EAGLE3_ALIAS in each.aliases for each in client.list_policies()):
        raise SettingsError(
            f"control.total_tokens, depth, top_k: the table has no action as large as {EAGLE3}, where the loop begins"
        )
    client.promote_policy(EAGLE3_ALIAS, reason="where the loop begins")


def _report(state_dir: Path, answered: Sequence[Answered]) -> LiveReport:
    updates = UpdateLedger(state_dir / FILE, SystemClock()).read()
    counts: dict[str, int] = {}
    for each in updates:
        how = str(each["status"]) if each["status"] == "stored" else f"{each['status']}: {each['reason']}"
        counts[how] = counts.get(how, 0) + 1
    try:
        with PolicyStore(state_dir / POLICIES, read_only=True) as store:
            champion = store.resolve(CHAMPION)
            action = next(each.action for each in store.list() if each.version == champion)
            entries = store.history(HistoryQuery(events=_MOVES))
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
    return LiveReport(
        seconds=max((each.at_seconds for each in answered), default=0.0),
        requests=len(answered),
        tokens=sum(len(each.token_ids) for each in answered),
        slices=_slices(answered),
        windows=sum(int(str(each["windows_used"])) for each in updates if each["status"] == "stored"),
        updates=counts,
        moves=tuple(
            Move(each.at, each.event, each.from_version, each.to_version, each.actor, each.reason) for each in entries
        ),
        champion=champion,
        champion_action=None if action is None else Action(*action),
    )


def _slices(answered: Sequence[Answered]) -> tuple[Slice, ...]:
    if not answered:
        return ()
    width = answered[-1].at_seconds / _SLICES
    tokens = [0] * _SLICES
    for each in answered:
        tokens[min(int(each.at_seconds / width), _SLICES - 1)] += len(each.token_ids)
    return tuple(Slice(number * width, count / width) for number, count in enumerate(tokens))
