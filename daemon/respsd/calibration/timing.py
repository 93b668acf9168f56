"""Times steps in the real engine, robustly on a machine that others use too.

A sequence decodes and changes its action at every step: a round runs each action once, in a new random order. A pass
makes a few rounds at each setting of context and batch, one setting after the other. Load from outside comes and goes
over many steps, so it slows whole passes; `typical_steps` takes each pass's slowness out before it takes medians over
the passes. Losslessness keeps the text, and so the work, the same whatever the actions.
"""

from __future__ import annotations

import math
import queue
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from respsd.clock import Clock
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.controller import Decision, Vector
from respsd.control.cost_model import StepSeconds
from respsd.control.router import CHAMPION
from respsd.control.signals import SIGNAL_NAMES, SIGNALS_WIDTH, batch_size
from respsd.engine.admission import scratch_rows
from respsd.engine.assembly import EngineConfig, Models, Shapes
from respsd.engine.events import EngineEvent, RequestFailed, RequestFinished
from respsd.engine.hooks import EngineHooks
from respsd.engine.local_run import fixed_actions_only, local_request, running_engine
from respsd.engine.loop import EngineLoop, LoopLimits
from respsd.engine.request import Speculation
from respsd.engine.window import StepMeasure

_CONTEXT = SIGNAL_NAMES.index("context_log") - SIGNALS_WIDTH
_WARM_UP_STEPS = 3
_ROUNDS = 2
"""Of each setting in a pass."""
_MOST_PASSES, _FEWEST_PASSES = 6, 2
_PATIENCE = 3.0
"""Where there are too few passes when the time is up, it goes on for so many times as long."""
_LONGEST_OUTPUT = 512
"""What memory is reserved for; a block that needs more steps starts anew."""
_POLISH_ITERATIONS = 8
_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of the rota."""

    turn: int
    """Number of the pass."""
    setting: int
    action: Action
    context: int
    step: StepMeasure


@dataclass(frozen=True, slots=True)
class Setting:
    """A context and a batch, and the actions to time there."""

    prompt: tuple[int, ...]
    batch: int
    actions: tuple[Action, ...]


class Rota(EngineHooks):
    """Controller and observer in one: says which action the next step runs, and keeps what the step took.

    All sequences of a step get the same action. Everything but `restart` happens on the engine's thread.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.steps: list[TimedStep] = []
        self.restart(0, 0, (OFF,), 1)

    def restart(self, turn: int, setting: int, actions: Sequence[Action], batch: int) -> None:
        """Begin with a setting; call it while no request runs. The first steps are warm-up and not kept."""
        self._turn, self._setting = turn, setting
        self.round = -1  # complete ones are those before it
        self._warm_up = _WARM_UP_STEPS
        self._actions, self._wanted_batch = tuple(actions), batch
        self._queue: list[Action] = []
        self._action, self._context = OFF, 0
        self._asked = self._booked = 0  # sequences of the step that are still to come

    @property
    def version(self) -> None:
        """No stored policy."""
        return

    def choose(self, observation: Vector, uniform: float) -> Decision:  # noqa: ARG002 - the Protocol's signature
        """The step's action; asked once for each of its sequences."""
        batch = batch_size(observation)
        if self._asked == 0:
            self._asked = batch
            self._context = round(2 ** (16 * float(observation[_CONTEXT])) - 1)
            self._action = self._next() if batch == self._wanted_batch else OFF
        self._asked -= 1
        return Decision(self._action, 0.0, CHAMPION)

    def _next(self) -> Action:
        if not self._queue:
            self.round += 1
            self._queue = self._rng.sample(self._actions, len(self._actions))
        return self._queue.pop()

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """Keep a step once, unless it was no step of the rota or was cut near an end."""
        del arm
        if self._booked == 0:
            self._booked = step.batch_size
            self._warm_up -= 1
            if self._warm_up < 0 and step.batch_size == self._wanted_batch and step.applied == self._action:
                self.steps.append(TimedStep(self._turn, self._setting, self._action, self._context, step))
        self._booked -= 1


def time_steps(
    models: Models,
    settings: Sequence[Setting],
    seconds: float,
    clock: Clock,
    rng: random.Random,
    shapes: Shapes | None = None,
) -> list[StepSeconds]:
    """Time every setting's actions for about so long and return the typical step of each.

    Where the machine is too slow for two passes in that time, it goes on for up to three times as long.
    """
    largest = ActionTable(tuple(dict.fromkeys(action for each in settings for action in each.actions))).largest
    rota = Rota(rng)
    router = fixed_actions_only(largest)
    router.swap(CHAMPION, rota)
    limits = LoopLimits(max_running=max(each.batch for each in settings))
    kv_tokens = max(each.batch * (len(each.prompt) + _LONGEST_OUTPUT + scratch_rows(largest)) for each in settings)
    # One step a window, so one action a step.
    config = EngineConfig(reserved=largest, persistence=1, kv_tokens=kv_tokens, limits=limits, shapes=shapes)
    started = clock.monotonic_ns()

    def elapsed() -> float:
        return (clock.monotonic_ns() - started) * _SECONDS

    def is_over() -> bool:
        return rota.round >= _ROUNDS or elapsed() >= _PATIENCE * seconds

    with running_engine(models, largest, rota, config=config, router=router) as engine:
        for turn in range(_MOST_PASSES):
            for number, setting in enumerate(settings):
                rota.restart(turn, number, setting.actions, setting.batch)
                while not is_over():
                    _decode(engine, setting, is_over)
            if elapsed() >= (seconds if turn + 1 >= _FEWEST_PASSES else _PATIENCE * seconds):
                break
    return typical_steps(rota.steps)


def _decode(engine: EngineLoop, setting: Setting, is_over: Callable[[], bool]) -> None:
    """Run the setting's sequences until it is over or their outputs are full."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    budget = min(_LONGEST_OUTPUT, engine.model.context_length - len(setting.prompt))
    requests = [local_request(setting.prompt, Speculation(), budget) for _ in range(setting.batch)]
    for request in requests:
        engine.submit(request, events.put)
    running = setting.batch
    while running:
        match events.get():
            case RequestFinished():
                running -= 1
            case RequestFailed(error):
                raise error
            case _:
                pass
        if is_over():
            for request in requests:
                engine.cancel(request.request_id)


def typical_steps(steps: Sequence[TimedStep]) -> list[StepSeconds]:
    """Each setting's actions on a pass of median slowness (a median polish of the logarithms, Tukey's two-way fit)."""
    columns = list(dict.fromkeys((step.setting, step.action) for step in steps))
    rows = list(dict.fromkeys(step.turn for step in steps))
    cells: dict[tuple[int, int], list[TimedStep]] = {}
    for step in steps:
        cells.setdefault((rows.index(step.turn), columns.index((step.setting, step.action))), []).append(step)
    parts = np.full((3, len(rows), len(columns)), math.nan)
    for (row, column), same in cells.items():
        # Not the fastest: on a busy machine a short step slips through undisturbed more often than a long one.
        parts[:, row, column] = np.median([_parts_ns(each.step) for each in same], axis=0) * _SECONDS
    slowness = _slowness(np.log(parts.sum(axis=0))) if steps else np.zeros(0)
    typical = np.nanmedian(parts / np.exp(slowness)[:, None], axis=1) if steps else np.zeros((3, 0))
    return [
        StepSeconds(
            action=action,
            context=float(
                np.mean([each.context for each in steps if (each.setting, each.action) == (setting, action)])
            ),
            batch=next(each.step.batch_size for each in steps if each.setting == setting),
            draft=float(draft),
            verify=float(verify),
            other=float(other),
        )
        for (setting, action), (draft, verify, other) in zip(columns, typical.T, strict=True)
    ]


def _parts_ns(step: StepMeasure) -> tuple[int, int, int]:
    return step.draft_ns, step.verify_ns, step.other_ns


def _slowness(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """By how much each pass's logarithms lie over the median pass's. :param logs: [passes, columns], NaN unknown."""
    slowness, level = np.zeros(logs.shape[0]), np.zeros(logs.shape[1])
    for _ in range(_POLISH_ITERATIONS):
        level = np.nanmedian(logs - slowness[:, None], axis=0)
        slowness = np.nanmedian(logs - level, axis=1)
        slowness -= np.median(slowness)
    return slowness
