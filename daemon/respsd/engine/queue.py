"""The queue in front of the engine: who may wait, in which order, and for how long.

Order. A request's rank is the moment of its arrival, less a head start for each step of its priority; the lowest rank
starts first. Waiting therefore counts as much as priority: with a head start of 10 s a high request goes before a
normal one that came up to 10 s earlier, and before no other. Nothing starves, whatever else arrives: a request is
overtaken only by such as came at most the two priorities' head starts after it.

Bounds. The queue holds so many requests and so many tokens (prompts and budgets together); what is too much is refused
at once. A request is given up when it has waited too long or when its caller's deadline has passed. A cancelled one
makes room at once, whatever the engine is busy with; those whose end the engine has yet to tell may take as much room
again, so that memory stays bounded where it does not move.

Hopeless requests. While the queue is never empty, requests start as fast as the engine lets them, and that rate is
measured. A request that would have to start twice as fast as this to be in time is refused at once, and not after a
useless wait.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from respsd.engine.api import Deliver, QueueLoad
from respsd.engine.request import GenerationRequest
from respsd.errors import DeadlineExceeded, Overloaded, QueueTooSlow, RespsdError

_NEVER = 1 << 62
_FEWEST_INTERVALS = 16
"""Between starts, before their mean says anything."""
_MOST_INTERVALS = 64
_SAFETY = 2.0
"""A request is hopeless where it would have to start so many times as fast as requests did lately."""
_RETRY_SECONDS = (1.0, 30.0)
"""Bounds of what a refused caller is told to wait."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait."""

    max_requests: int = 256
    max_tokens: int | None = None
    """Tokens of prompts and budgets; None: no bound. One request may always wait."""
    max_seconds: float | None = None
    """How long a request may wait; None: as long as it takes."""
    head_start_seconds: float = 10.0
    """What one step of priority is worth in waiting."""
    refuse_hopeless: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request that has not started."""

    request: GenerationRequest
    deliver: Deliver
    submitted_ns: int
    """Monotonic."""
    created_at_ns: int
    """UTC."""

    @property
    def ends_at_ns(self) -> int:
        """When the request's own time limit ends it."""
        return self.submitted_ns + self.request.stopping.time_limit_ns


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    rank_ns: int
    number: int
    """Arrivals in order, for equal ranks."""
    entry: Waiting = field(compare=False)
    due_ns: int = field(compare=False)
    """When it is given up."""


class RequestQueue:
    """Not safe to use from several threads at once: its owner holds a lock around each call."""

    def __init__(self, limits: QueueLimits) -> None:
        """Nothing waits yet."""
        self._limits = limits
        self._places: list[_Place] = []  # rising
        self._cancelled: list[Waiting] = []  # out of the queue, their end not told yet
        self._arrivals = 0
        self._tokens = 0
        self._next_due_ns = _NEVER  # no entry is due before it
        self._next_end_ns = _NEVER  # no entry's own time limit passes before it
        self._rate = StartRate()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and no cancelled request for its end to be told."""
        return not self._places and not self._cancelled

    def check_room(self) -> None:
        """Raise Overloaded where no request could be added, however small."""
        self._check(0)

    def add(self, entry: Waiting) -> None:
        """Let a request wait; raises Overloaded, QueueTooSlow or DeadlineExceeded where it must not."""
        request, limits = entry.request, self._limits
        self._check(request.tokens)
        rank = entry.submitted_ns - round(request.priority * limits.head_start_seconds * 1e9)
        waits_until = _NEVER if limits.max_seconds is None else entry.submitted_ns + round(limits.max_seconds * 1e9)
        deadline = _NEVER if request.deadline_ns is None else request.deadline_ns
        place = _Place(rank, self._arrivals, entry, min(waits_until, deadline))
        if limits.refuse_hopeless:
            self._check_hope(place)
        self._arrivals += 1
        self._tokens += request.tokens
        self._next_due_ns = min(self._next_due_ns, place.due_ns)
        self._next_end_ns = min(self._next_end_ns, entry.ends_at_ns)
        insort(self._places, place)

    def first(self) -> Waiting | None:
        """The request that is to start next."""
        return self._places[0].entry if self._places else None

    def start(self, entry: Waiting, now_ns: int) -> None:
        """Take a request out because it starts."""
        self.drop(entry)
        if self._places:
            self._rate.started(now_ns)

    def drop(self, entry: Waiting) -> None:
        """Take a request out because it cannot start."""
        self._take_out(lambda place: place.entry is entry)
        # It may have been cancelled since it was `first`: who took it tells its end.
        self._cancelled = [each for each in self._cancelled if each is not entry]

    def cancel(self, request_id: str) -> None:
        """Take out the requests with this id; `cancelled` hands them to who tells their end."""
        self._cancelled += self._take_out(lambda place: place.entry.request.request_id == request_id)

    def cancelled(self) -> list[Waiting]:
        """The requests that were cancelled since the last call."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def overdue(self, now_ns: int) -> list[tuple[Waiting, RespsdError]]:
        """Take out the requests that have waited too long, each with what its caller is told."""
        if now_ns < self._next_due_ns:
            return []
        retry = self._retry_seconds()
        due = self._take_out(lambda place: place.due_ns <= now_ns)
        self._next_due_ns = min((place.due_ns for place in self._places), default=_NEVER)
        return [(entry, self._too_late(entry, now_ns, retry)) for entry in due]

    def out_of_time(self, now_ns: int) -> list[Waiting]:
        """Take out the requests whose own time limit has passed."""
        if now_ns < self._next_end_ns:
            return []
        ended = self._take_out(lambda place: place.entry.ends_at_ns <= now_ns)
        self._next_end_ns = min((place.entry.ends_at_ns for place in self._places), default=_NEVER)
        return ended

    def clear(self) -> list[Waiting]:
        """Take out all requests."""
        return self.cancelled() + self._take_out(lambda _place: True)

    def load(self, now_ns: int) -> QueueLoad:
        """What waits now, and what may."""
        limits, entries = self._limits, [place.entry for place in self._places]
        interval = self._rate.interval_seconds
        return QueueLoad(
            tokens=self._tokens,
            by_priority=Counter(entry.request.priority for entry in entries),
            oldest_seconds=max(((now_ns - entry.submitted_ns) / 1e9 for entry in entries), default=0.0),
            expected_seconds=0.0 if not entries else None if interval is None else len(entries) * interval,
            max_requests=limits.max_requests,
            max_tokens=limits.max_tokens,
            max_seconds=limits.max_seconds,
        )

    def _check(self, tokens: int) -> None:
        limits = self._limits
        waiting = len(self._places) + max(0, len(self._cancelled) - limits.max_requests)
        if waiting >= limits.max_requests:
            raise Overloaded(
                "the queue",
                waiting,
                limits.max_requests,
                self._retry_seconds(),
                setting="engine.max_waiting",
                reason="queue_requests",
            )
        if limits.max_tokens is not None and self._places and self._tokens + max(1, tokens) > limits.max_tokens:
            raise Overloaded(
                "the queue's room for tokens",
                self._tokens + tokens,
                limits.max_tokens,
                self._retry_seconds(),
                setting="admission.max_waiting_tokens",
                reason="queue_tokens",
            )

    def _check_hope(self, place: _Place) -> None:
        """Refuse a request that could not start in time even at twice the measured rate."""
        interval = self._rate.interval_seconds
        if interval is None or place.due_ns == _NEVER:
            return
        ahead, left = bisect_left(self._places, place), (place.due_ns - place.entry.submitted_ns) / 1e9
        if ahead * interval > left * _SAFETY:
            raise QueueTooSlow(
                f"{ahead} requests are ahead of this one and start {1 / interval:.2g} a second, so it would wait about "
                f"{ahead * interval:.0f} s; it has {left:.1f} s until {self._ends_by(place.entry)}",
                self._retry_seconds(),
            )

    def _too_late(self, entry: Waiting, now_ns: int, retry_seconds: float) -> RespsdError:
        deadline = entry.request.deadline_ns
        waited = (now_ns - entry.submitted_ns) / 1e9
        if deadline is not None and deadline <= now_ns:
            return DeadlineExceeded(f"the deadline passed while the request waited in the queue, {waited:.1f} s")
        return QueueTooSlow(f"the request waited {waited:.1f} s for a place, to {self._ends_by(entry)}", retry_seconds)

    def _ends_by(self, entry: Waiting) -> str:
        """What ends a request's waiting, in words."""
        most, deadline = self._limits.max_seconds, entry.request.deadline_ns
        if most is None or (deadline is not None and deadline < entry.submitted_ns + most * 1e9):
            return "its deadline"
        return f"the limit, admission.max_queue_seconds = {most:g}"

    def _retry_seconds(self) -> float:
        """When it is worth trying again: half of what waits has started then, by the measured rate."""
        least, most = _RETRY_SECONDS
        interval = self._rate.interval_seconds
        return least if interval is None else min(most, max(least, len(self._places) * interval / 2))

    def _take_out(self, gone: Callable[[_Place], bool]) -> list[Waiting]:
        taken = [place.entry for place in self._places if gone(place)]
        if taken:
            self._places = [place for place in self._places if not gone(place)]
            self._tokens -= sum(entry.request.tokens for entry in taken)
        if not self._places:
            self._next_due_ns = _NEVER
            self._rate.forget()
        return taken


class StartRate:
    """How fast requests start while others wait for them to: an empty queue's starts tell of arrivals only."""

    def __init__(self) -> None:
        self._starts_ns: deque[int] = deque(maxlen=_MOST_INTERVALS + 1)

    def started(self, now_ns: int) -> None:
        """A request started, and others go on waiting."""
        self._starts_ns.append(now_ns)

    def forget(self) -> None:
        """The queue is empty: what comes next may start whenever it comes."""
        self._starts_ns.clear()

    @property
    def interval_seconds(self) -> float | None:
        """Mean time between two starts; None before enough of them were seen, or where all started at once."""
        if len(self._starts_ns) <= _FEWEST_INTERVALS:
            return None
        mean = (self._starts_ns[-1] - self._starts_ns[0]) / (len(self._starts_ns) - 1) / 1e9
        return mean if mean > 0 and math.isfinite(mean) else None
