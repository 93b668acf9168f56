"""The backlog: finished requests that wait to be written, bounded by the rows that they hold."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from respsd.experience.records import RequestRecord, TransitionRecord


@dataclass(frozen=True, slots=True)
class Entry:
    """One request with all its windows; written whole or dropped whole."""

    request: RequestRecord
    transitions: tuple[TransitionRecord, ...]

    @property
    def rows(self) -> int:
        """Rows in the database."""
        return 1 + len(self.transitions)


class Backlog:
    """A queue between the engine's thread, which must never wait, and the writer's.

    What the writer took still counts against the bound until it is settled, so that a database that takes nothing
    cannot make the process grow.
    """

    def __init__(self, capacity_rows: int) -> None:
        self._capacity_rows = capacity_rows
        self._changed = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._unsettled_rows = 0
        self._offered = 0
        self._settled = 0
        self._nudges = 0
        self._flush_to = 0
        self._closed = False
        self._abandoned = False
        self._woken = False

    @property
    def rows(self) -> int:
        """Rows that are waiting or being written."""
        with self._changed:
            return self._unsettled_rows

    @property
    def closed(self) -> bool:
        """Whether nothing more is let in."""
        with self._changed:
            return self._closed

    @property
    def abandoned(self) -> bool:
        """Whether the writer is to give up."""
        with self._changed:
            return self._abandoned

    def offer(self, entry: Entry) -> bool:
        """Let an entry in if there is room; False where there is not, or it is closed."""
        with self._changed:
            if self._closed or self._unsettled_rows + entry.rows > self._capacity_rows:
                return False
            self._queue.append(entry)
            self._unsettled_rows += entry.rows
            self._offered += 1
            self._changed.notify_all()
            return True

    def take(self, rows: int, seconds: float) -> list[Entry] | None:
        """Wait for an entry, then for more for at most `seconds`; at most `rows` rows, if not the first alone has more.

        Empty after a `wake` where nothing waits; None once there is nothing left and nothing more will come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed or self._woken)
            self._woken = False
            if not self._queue:
                return None if self._closed else []
            deadline = time.monotonic() + seconds
            while not self._full(rows) and not self._flushing() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            batch: list[Entry] = []
            taken = 0
            while self._queue and (not batch or taken + self._queue[0].rows <= rows):
                batch.append(self._queue.popleft())
                taken += batch[-1].rows
            return batch

    def wake(self) -> None:
        """Have a `take` return, with an empty batch where nothing waits."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def settle(self, batch: list[Entry]) -> None:
        """Entries that were taken are written or dropped; their room is free again."""
        with self._changed:
            self._unsettled_rows -= sum(entry.rows for entry in batch)
            self._settled += len(batch)
            self._changed.notify_all()

    @property
    def nudges(self) -> int:
        """Grows with each call of `flush` and `close`."""
        with self._changed:
            return self._nudges

    def pause(self, seconds: float, nudges: int) -> None:
        """Wait between two tries; ended by a nudge after those counted when the failed try began, or by `abandon`."""
        with self._changed:
            self._changed.wait_for(lambda: self._nudges != nudges or self._abandoned, seconds)

    def flush(self, timeout: float) -> bool:
        """Have all that was let in so far settled without delay; False where that took over `timeout` seconds."""
        with self._changed:
            goal = self._flush_to = self._offered
            self._nudges += 1
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._settled >= goal, timeout)

    def close(self) -> None:
        """Let nothing more in."""
        with self._changed:
            self._closed = True
            self._nudges += 1
            self._changed.notify_all()

    def abandon(self) -> list[Entry]:
        """Have the writer give up; the entries that it had not taken, which are its no more."""
        with self._changed:
            self._closed = self._abandoned = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self.settle(left)
        return left

    def _full(self, rows: int) -> bool:
        return sum(entry.rows for entry in self._queue) >= rows

    def _flushing(self) -> bool:
        return self._closed or self._settled < self._flush_to
