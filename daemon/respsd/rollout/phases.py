"""The shared phase clock: which arm runs now, for all sequences under test together.

A step's time belongs to all sequences in it, so that arms which ran side by side could not be told apart. The clock
gives the arms turns of `steps` engine steps each. Four turns, in ABBA or BAAB order by a fair coin, are a quad: a
drift over its time cancels, and under equal policies the coin alone makes its log ratio symmetric about zero, whatever
the workload does. A sequence that joins in the middle takes part from there; where no sequence is running, the next one
to start begins a quad of its own, so that a lone short request wastes none of its windows.

How much of the traffic is under test is a share of quads, not of requests: a sequence on a small tree beside one on a
large tree waits for that one, so that a comparison inside half a batch would say nothing of the whole. In quads without
a contest everybody has the champion, and the blocks only keep the windows in step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random

from respsd.experience.records import TransitionRecord
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.pairing import BLOCKS, Measured, Observation, observe

_ABBA, _BAAB = (False, True, True, False), (True, False, False, True)


@dataclass(slots=True, eq=False)
class Quad:
    """Four blocks of one contest, or of none."""

    contest: Contest | None
    order: tuple[bool, ...]
    """[BLOCKS], whether the subject runs the block."""
    first_block: int
    cancelled: bool = False
    """Its windows end with the step that runs, and it is no evidence."""
    measured: dict[Hashable, list[Measured]] = field(default_factory=dict)
    """By participant, [BLOCKS]."""
    batch_sizes: list[float] = field(default_factory=list)
    context_lengths: list[int] = field(default_factory=list)

    def arm(self, position: int) -> Arm | None:
        """Who runs a block; None where nothing is compared."""
        if self.contest is None:
            return None
        return self.contest.subject if self.order[position] else self.contest.control

    def observation(self) -> Observation | None:
        """What it says; None where too little of it was measured."""
        return observe(self.order, list(self.measured.values()))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBlock:
    """The block that one participant's window was opened in (a `control.controller.Block`)."""

    clock: PhaseClock
    quad: Quad
    position: int
    participant: Hashable
    ends_at: int
    """Steps begun by the clock when it is over."""

    @property
    def number(self) -> int | None:
        """Number of the block in this run of the daemon; None where nothing is compared."""
        return None if self.quad.contest is None else self.quad.first_block + self.position

    @property
    def arm(self) -> Arm | None:
        """Whose block it is; None where nothing is compared."""
        return self.quad.arm(self.position)

    @property
    def over(self) -> bool:
        """Whether the step that just ended was the block's last."""
        return self.quad.cancelled or self.clock.steps_begun >= self.ends_at


class PhaseClock:
    """Places windows in blocks. Lives on the engine's thread."""

    def __init__(
        self, steps: int, rng: Random, draw: Callable[[], Contest | None], finished: Callable[[Quad], None]
    ) -> None:
        """Start idle.

        :param steps: of a block
        :param draw: chooses the contest of a new quad, before anything of it is known; None: it is to have none
        :param finished: takes each quad with a contest that was not cancelled, once nothing can be added to it
        """
        self.steps_begun = 0
        self._steps = steps
        self._rng = rng
        self._draw = draw
        self._finished = finished
        self._quad: Quad | None = None
        self._position = 0
        self._ends_at = 0
        self._next_block = 0
        self._live: dict[Hashable, int] = {}  # participants and the block each was last seen in

    @property
    def quad(self) -> Quad | None:
        """The quad that runs; None while idle."""
        return self._quad

    @property
    def subject_runs(self) -> bool:
        """Whether the running block is the subject's."""
        return self._quad is not None and self._quad.order[self._position]

    def before_batch(self) -> None:
        """An engine step begins."""
        self.steps_begun += 1

    def place(self, participant: Hashable) -> PlacedBlock:
        """The block for a window that opens in this step."""
        stale = self.steps_begun > self._ends_at + 1  # nobody went on where the block ended
        if self._quad is None or self._quad.cancelled or not self._live or stale:
            self._begin_quad()
        elif self.steps_begun > self._ends_at:
            self._turn()
        assert self._quad is not None
        self._live[participant] = self._quad.first_block + self._position
        return PlacedBlock(self, self._quad, self._position, participant, self._ends_at)

    def after_window(self, window: TransitionRecord) -> None:
        """Book a window that was placed."""
        placed = window.decision.block
        if not isinstance(placed, PlacedBlock):
            return
        arm = placed.arm
        if arm is not None and window.decision.policy_version == arm.version:  # else a fault had another policy choose
            placed.quad.batch_sizes.append(window.batch_size)
            placed.quad.context_lengths.append(window.context_length)
            self.book(placed, Measured.of(window), last=window.truncated)
        elif window.truncated:
            self._leave(placed)

    def book(self, placed: PlacedBlock, measured: Measured, *, last: bool) -> None:
        """Add what a participant did in its block; with its `last` window it leaves."""
        blocks = placed.quad.measured.setdefault(placed.participant, [Measured()] * BLOCKS)
        blocks[placed.position] += measured
        if last:
            self._leave(placed)

    def cancel(self) -> None:
        """Throw the running quad away; its windows end with the step that runs."""
        if self._quad is not None:
            self._quad.cancelled = True

    def _leave(self, placed: PlacedBlock) -> None:
        self._live.pop(placed.participant, None)
        if not self._live and placed.quad is self._quad:
            self._end_quad()

    def _begin_quad(self) -> None:
        self._end_quad()
        self._quad = Quad(self._draw(), self._rng.choice((_ABBA, _BAAB)), self._next_block)
        self._next_block += BLOCKS
        self._enter(0)

    def _turn(self) -> None:
        assert self._quad is not None
        left = self._quad.first_block + self._position
        self._live = {who: block for who, block in self._live.items() if block >= left}
        if self._position + 1 < BLOCKS:
            self._enter(self._position + 1)
        else:
            live = self._live
            self._begin_quad()
            self._live = live

    def _enter(self, position: int) -> None:
        self._position = position
        self._ends_at = self.steps_begun - 1 + self._steps

    def _end_quad(self) -> None:
        quad, self._quad = self._quad, None
        self._live = {}
        if quad is not None and quad.contest is not None and not quad.cancelled:
            self._finished(quad)
