"""How a step's time grows: with the context's length at one stream, and with the streams at a short context.

Prompts are random tokens, since a step's time does not depend on what they say. A step counts that all streams of
its point shared; the points are visited in random order, several times, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from respsd.control.action import Action, ActionTable
from respsd.engine.admission import scratch_rows
from respsd.engine.api import Engine
from respsd.engine.assembly import EngineConfig, Models, Shapes
from respsd.engine.events import EngineEvent, RequestFailed, RequestFinished
from respsd.engine.hooks import EngineHooks
from respsd.engine.local_run import fixed_request, running_engine
from respsd.engine.loop import LoopLimits
from respsd.engine.window import StepMeasure
from respsd.errors import InvalidRequest, RespsdError

_UNCOUNTED = 2
"""Steps at the beginning of a visit, which allocate."""
_NS_PER_MS = 1e6
_PROMPT_TOKENS_A_STEP = 32
"""Of a prompt, that a step takes at the very least while others run."""
_SLACK_TOKENS = 128
"""That a stream may decode besides, where the context has room: the others may be late to start."""
_UNPACED = 1e9
"""Times that a step may take longer because of prompt tokens."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """What is measured."""

    action: Action
    context: int
    """Tokens of each stream's prompt."""
    streams: int


@dataclass(frozen=True, slots=True)
class PointTime:
    """A point's steps, in milliseconds."""

    point: Point
    steps: int
    p10: float
    p50: float
    p90: float
    draft: float
    """Medians, as are the next two."""
    verify: float
    other: float


@dataclass(frozen=True, slots=True)
class Growth:
    """A straight line through the medians of one action: milliseconds at the shortest context and one stream, and more.

    `residual` is the largest distance of a median from the line, as a share of the line: how far growth is from
    linear.
    """

    action: Action
    over: str
    """`context` or `streams`."""
    fixed_ms: float
    """Of the line where `over` is 0: weights, launches, everything that is paid once a step."""
    ms_per_unit: float
    """For 1,000 tokens of context, or for one stream."""
    residual: float


def points(actions: Sequence[Action], contexts: Sequence[int], streams: Sequence[int], short: int) -> list[Point]:
    """Each context with one stream, and each number of streams at the `short` context."""
    found = [Point(action, context, 1) for action in actions for context in contexts]
    found += [Point(action, short, count) for action in actions for count in streams]
    return list(dict.fromkeys(found))


def measure_scaling(
    models: Models,
    wanted: Sequence[Point],
    *,
    steps: int,
    repeats: int,
    limits: LoopLimits,
    rng: random.Random,
    progress: Callable[[int], None] = lambda _: None,
    shapes: Shapes | None = None,
) -> list[PointTime]:
    """Visit every point `repeats` times for `steps` steps each. :param progress: told of each visit"""
    reserved = ActionTable(tuple(dict.fromkeys(point.action for point in wanted))).largest
    most = max(point.streams for point in wanted)
    too_long = next((p for p in wanted if p.context + _budget(p, steps) > models.info.context_length), None)
    if too_long is not None:
        limit = f"prompt and steps need {too_long.context + _budget(too_long, steps)} tokens"
        raise InvalidRequest("contexts", too_long.context, f"{limit}; the model has {models.info.context_length}")
    log = _SharedSteps()
    found: dict[Point, list[StepMeasure]] = {point: [] for point in wanted}
    room = {p: min(_budget(p, steps) + _SLACK_TOKENS, models.info.context_length - p.context) for p in wanted}
    needs = [p.streams * (p.context + room[p] + scratch_rows(reserved)) for p in wanted]
    # Prompts are to be in soon: the streams that wait for them use up their budgets.
    unpaced = replace(limits, max_running=most, step_tokens=None, prefill_slowdown=_UNPACED)
    config = EngineConfig(reserved=reserved, kv_tokens=max(needs), limits=unpaced, shapes=shapes)
    with running_engine(models, reserved, log, config=config) as engine:
        for _ in range(repeats):
            for point in rng.sample(list(wanted), len(wanted)):
                found[point] += _visit(engine, log, models, point, steps, room[point], rng)
                progress(1)
    return [_time(point, measures) for point, measures in found.items()]


def growth(times: Sequence[PointTime], over: str, short: int) -> list[Growth]:
    """A line for each action through its points. :param over: `context` or `streams`"""
    found = []
    for action in dict.fromkeys(time.point.action for time in times):
        mine = [time for time in times if time.point.action == action]
        if over == "context":
            mine = [time for time in mine if time.point.streams == 1]
        else:
            mine = [time for time in mine if time.point.context == short]
        x = np.array([time.point.context / 1000 if over == "context" else time.point.streams for time in mine])
        y = np.array([time.p50 for time in mine])
        if len(mine) < 2:
            continue
        slope, fixed = (float(each) for each in np.polyfit(x, y, 1))
        line = fixed + slope * x
        found.append(Growth(action, over, fixed, slope, float(np.abs(y / line - 1).max())))
    return found


class _SharedSteps(EngineHooks):
    """Keeps the steps that all streams of a point shared, until there are enough."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.complete = threading.Event()
        """Set once all streams are with the engine: no step begins before."""
        self._steps: list[StepMeasure] = []
        self._streams = self._wanted = 0

    def begin(self, streams: int, steps: int) -> None:
        """Start a visit."""
        self.complete.clear()
        self._steps, self._streams, self._wanted = [], streams, (steps + _UNCOUNTED) * streams
        self.done.clear()

    def before_batch(self) -> None:
        """Wait for who is missing."""
        self.complete.wait()

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """Keep it where nobody was missing."""
        del arm
        if step.batch_size == self._streams and len(self._steps) < self._wanted:
            self._steps.append(step)
            if len(self._steps) == self._wanted:
                self.done.set()

    def counted(self) -> list[StepMeasure]:
        """The visit's steps, one for all streams."""
        return self._steps[_UNCOUNTED * self._streams :: self._streams]


def _visit(
    engine: Engine,
    log: _SharedSteps,
    models: Models,
    point: Point,
    steps: int,
    room: int,
    rng: random.Random,
) -> list[StepMeasure]:
    """Run a point's streams until they shared enough steps, then end them. :param room: tokens a stream may decode"""
    requests = [
        fixed_request(
            [rng.randrange(models.info.vocab_size) for _ in range(point.context)],
            point.action,
            room,
        )
        for _ in range(point.streams)
    ]
    left = threading.Semaphore(0)
    faults: list[RespsdError] = []

    def deliver(event: EngineEvent) -> None:
        if isinstance(event, RequestFailed):
            faults.append(event.error)
        if isinstance(event, RequestFinished | RequestFailed):
            log.done.set()  # the streams are no longer complete, so no further step counts
            left.release()

    log.begin(point.streams, steps)
    try:
        for request in requests:
            engine.submit(request, deliver)
    finally:
        log.complete.set()
    log.done.wait()
    for request in requests:
        engine.cancel(request.request_id)
    for _ in requests:
        left.acquire()
    if faults:
        raise faults[0]
    return log.counted()


def _budget(point: Point, steps: int) -> int:
    """Tokens that last until the last stream's prompt is in and the steps are done, if not every draft is right."""
    rounds = (point.streams - 1) * -(-point.context // _PROMPT_TOKENS_A_STEP)
    return (2 if point.action.is_off else 4) * (rounds + steps + _UNCOUNTED)


def _time(point: Point, steps: Sequence[StepMeasure]) -> PointTime:
    if not steps:
        raise InvalidRequest("steps", 0, f"{point.streams} streams of {point.context} tokens never shared enough steps")
    parts = np.array([(step.draft_ns, step.verify_ns, step.other_ns) for step in steps]) / _NS_PER_MS  # [steps, 3]
    p10, p50, p90 = (float(each) for each in np.percentile(parts.sum(axis=1), (10, 50, 90)))
    draft, verify, other = (float(each) for each in np.median(parts, axis=0))
    return PointTime(point, len(steps), p10, p50, p90, draft, verify, other)
