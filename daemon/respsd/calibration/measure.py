"""A whole calibration: the target's answers, acceptance along them, step times, and the model fitted to both."""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import structlog
import torch

from respsd import __version__
from respsd.calibration.design import actions_to_time
from respsd.calibration.drafts import Answer, record_answers
from respsd.calibration.prompts import encoded_prompts
from respsd.calibration.record import Calibration, Setup
from respsd.calibration.replay import AnswerRecord, Axes, acceptance, growth
from respsd.calibration.timing import Setting, time_steps
from respsd.clock import Clock
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.control.cost_model import CostModel, StepCost, StepSeconds
from respsd.engine.assembly import EngineConfig, Models, Shapes
from respsd.engine.events import EngineEvent, FinishReason, RequestFailed, RequestFinished, TokensCommitted
from respsd.engine.local_run import fixed_request, running_engine
from respsd.engine.loop import LoopLimits
from respsd.errors import CalibrationFailed

log = structlog.get_logger(__name__)

_CONTEXTS = (128, 1024)
"""Tokens that a lone sequence is timed behind; at most half of the model's context."""
_ACTIONS_TIMED = 12
_BATCHES, _ACTIONS_IN_BATCH = (4, 16), 6
"""Sequences that are timed together, as far as the daemon runs so many; small trees alone, which is what a batch can
afford."""
_PLACES = 48
"""Of each answer."""
_WIDEST_RECORDED = 16
"""Wider trees are taken to accept what this one does: what a 17th child holds is almost never the target's token, and
drafting at every place of the answers is what calibration spends most time on."""
_ACCEPTANCE_SHARE = 0.4
"""Of the time."""


def setup_of(models: Models, shapes: Shapes | None = None) -> Setup:
    """What a calibration of these models on this machine is true for; they must have a drafter.

    :param shapes: how the engine's steps run; None: by the device.
    """
    assert models.info.drafter is not None
    device = models.target.layout.device
    return Setup(
        target=models.info.target,
        drafter=models.info.drafter,
        dtype=models.info.dtype,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        engine_version=__version__,
        exact=models.target.exact,
        shapes=shapes,
    )


def calibrate(
    models: Models,
    table: ActionTable,
    *,
    seconds: float,
    max_running: int,
    clock: Clock,
    shapes: Shapes | None = None,
) -> Calibration:
    """Measure and fit. Takes about `seconds`; on machines so slow that this is too short, up to three times that.

    :param max_running: sequences that the daemon will run at once; steps are timed for a few of them together, too
    :param shapes: how the daemon's steps will run; None: by the device

    Raises CalibrationFailed where too little could be measured.
    """
    started = clock.monotonic_ns()
    largest = _largest(table)
    prompts = encoded_prompts(models.tokenizer)
    longest = models.target.context_length // 2
    prompts = [
        prompt for prompt in prompts if len(prompt) + _PLACES + largest.depth + 2 <= models.target.context_length
    ]
    if not prompts:
        raise CalibrationFailed(
            f"the model's context of {models.target.context_length} tokens is too short for any of the prompts"
        )
    answers = _answers(models, prompts, largest.depth)
    axes = _axes(table, largest)
    records = _on_a_thread_that_ends(models, answers, axes, seconds * _ACCEPTANCE_SHARE, clock)
    if not records:
        raise CalibrationFailed("the model's answers to the built-in prompts are too short")
    earned = acceptance(records, axes)
    log.info("calibration_acceptance", places=earned.places)
    contexts = sorted({min(context, longest) for context in _CONTEXTS})
    settings = _settings(prompts, table, contexts, max_running)
    steps = time_steps(models, settings, seconds * (1 - _ACCEPTANCE_SHARE), clock, random.Random(0), shapes)
    alone = [each for each in steps if each.batch == 1]
    if not any(each.action.is_off for each in alone) or len(alone) < 2:
        raise CalibrationFailed("the machine is too slow to time the steps of a few actions")
    # Elsewhere than on processors whole frontiers are expanded.
    grown = growth(records, axes) if models.target.layout.device.type == "cpu" else None
    model = CostModel(StepCost.fit(steps, grown), earned, _typical_contexts(alone, contexts))
    took = (clock.monotonic_ns() - started) / 1e9
    log.info("calibration_done", seconds=round(took, 1), fit_error=round(model.cost.fit_error, 3))
    now = datetime.fromtimestamp(clock.time_ns() / 1e9, UTC).isoformat(timespec="seconds")
    return Calibration(setup_of(models, shapes), model, largest, now, took)


def _largest(table: ActionTable) -> Action:
    """At least as large as each action of the table; `off` alone makes no trees."""
    largest = table.largest
    if largest.is_off:
        raise CalibrationFailed("the action table holds nothing but 'off'")
    return largest


def _answers(models: Models, prompts: Sequence[tuple[int, ...]], depth: int) -> list[Answer]:
    """The target's greedy answers to all prompts, decoded plainly and together."""
    new_tokens = _PLACES + depth + 2
    kv_tokens = sum(len(prompt) + new_tokens + OFF.total_tokens for prompt in prompts)
    config = EngineConfig(reserved=OFF, kv_tokens=kv_tokens, limits=LoopLimits(max_running=len(prompts)))
    events: list[queue.SimpleQueue[EngineEvent]] = [queue.SimpleQueue() for _ in prompts]
    with running_engine(models, OFF, config=config) as engine:
        for prompt, inbox in zip(prompts, events, strict=True):
            engine.submit(fixed_request(prompt, OFF, new_tokens, ignore_eos=False), inbox.put)
        return [_answer(prompt, inbox) for prompt, inbox in zip(prompts, events, strict=True)]


def _answer(prompt: tuple[int, ...], inbox: queue.SimpleQueue[EngineEvent]) -> Answer:
    output: list[int] = []
    while True:
        match inbox.get():
            case TokensCommitted(ids, _):
                output += ids
            case RequestFinished(reason):
                return Answer(prompt, tuple(output), ended=reason is FinishReason.EOS)
            case RequestFailed(error):
                raise error


def _axes(table: ActionTable, largest: Action) -> Axes:
    """All values of the table's knobs and EAGLE-3's own."""
    trees = [action for action in table if not action.is_off]
    widths = {action.top_k for action in trees} | {min(EAGLE3.top_k, largest.top_k)}
    totals = {action.total_tokens for action in trees} | {2, min(EAGLE3.total_tokens, largest.total_tokens)}
    top_ks = sorted({min(width, _WIDEST_RECORDED) for width in widths})
    return Axes(tuple(top_ks), largest.depth, tuple(sorted(totals)))


def _on_a_thread_that_ends(
    models: Models, answers: Sequence[Answer], axes: Axes, seconds: float, clock: Clock
) -> list[AnswerRecord]:
    """Record on a thread of its own: OpenMP's workers of a thread that lives on would slow the engine's down."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="calibration") as thread:
        return thread.submit(record_answers, models, answers, axes, seconds, clock).result()


def _settings(
    prompts: Sequence[tuple[int, ...]], table: ActionTable, contexts: Sequence[int], max_running: int
) -> list[Setting]:
    text = [token for prompt in prompts for token in prompt]
    actions = actions_to_time(table.actions, _ACTIONS_TIMED)
    settings = [Setting(_cycled(text, context), 1, actions) for context in contexts]
    small = sorted(actions, key=lambda action: (action.total_tokens, action.pool))[:_ACTIONS_IN_BATCH]
    batches = sorted({min(batch, max_running) for batch in _BATCHES} - {1})
    return settings + [Setting(_cycled(text, contexts[0]), batch, tuple(small)) for batch in batches]


def _cycled(text: Sequence[int], length: int) -> tuple[int, ...]:
    """A prompt of that length; what it says is of no account for the time."""
    return tuple(text[i % len(text)] for i in range(length))


def _typical_contexts(alone: Sequence[StepSeconds], contexts: Sequence[int]) -> tuple[float, ...]:
    """The mean context of each setting's steps: outputs make contexts a little longer than the prompts."""
    means = []
    for low, high in zip(contexts, (*contexts[1:], float("inf")), strict=True):
        inside = [each.context for each in alone if low <= each.context < high]
        if inside:
            means.append(sum(inside) / len(inside))
    return tuple(means)
