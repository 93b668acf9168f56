"""Steps in as few parts as the memory allows.

A request's KV is reserved before it starts, so it cannot run out. What can is the memory that a step works in, which
grows with the step's rows. Ending a request would free none of it for the others, since the KV arena is one buffer for
all. So a step that does not fit is undone and run again in two halves, each of them likewise if need be. A request's
tokens are the same in any company, so this costs speed and nothing else. What does not fit alone is halved where that
can be (a part of a prompt), and ended otherwise: it could not have gone on.

For some steps after that no more goes together than fitted, lest every step be tried twice; then more is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

CAREFUL_STEPS = 256
"""Steps that stay in small parts after memory ran out."""

Member = TypeVar("Member")


class FittingSteps(Generic[Member]):
    """Runs steps of all members together, or in parts that fit."""

    def __init__(
        self,
        step: Callable[[Sequence[Member]], bool],
        halve: Callable[[Member], Member | None],
        end: Callable[[Member], None],
    ) -> None:
        """Everything goes together.

        :param step: a step of some members; False where memory ran out, and then nothing has changed.
        :param halve: half of a member's step, which the next steps go on from; None where it has no half.
        :param end: ends a member that does not fit alone and has no half.
        """
        self._step = step
        self._halve = halve
        self._end = end
        self._together: int | None = None  # members of a part at most
        self._careful_steps = 0

    def run(self, members: Sequence[Member]) -> None:
        """One step of every member."""
        if self._careful_steps:
            self._careful_steps -= 1
        else:
            self._together = None
        size = self._together or max(1, len(members))
        for first in range(0, len(members), size):
            self._run_part(members[first : first + size])

    def _run_part(self, members: Sequence[Member]) -> None:
        if self._step(members):
            return
        if len(members) == 1:
            if (part := self._halve(members[0])) is not None:
                self._run_part([part])
            else:
                self._end(members[0])
            return
        half = (len(members) + 1) // 2
        self._together, self._careful_steps = half, CAREFUL_STEPS
        log.warning("step_in_parts", members=len(members), together=half)
        self._run_part(members[:half])
        self._run_part(members[half:])
