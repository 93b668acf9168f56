"""Measures the noise of this machine: the engine answers questions with two equal arms alternating."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import torch

from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.control.controller import Controller
from respsd.control.router import BASELINE, CHAMPION, ControllerSource, PolicyRouter
from respsd.control.static import StaticController
from respsd.engine.assembly import EngineConfig, Models
from respsd.engine.hooks import EngineHooks, HookChain
from respsd.engine.local_run import local_request, run, running_engine
from respsd.engine.request import Speculation
from respsd.errors import UnknownPolicy
from respsd.experience.records import TransitionRecord
from respsd.rollout.contest import Arm, Contest
from respsd.rollout.noise import Noise
from respsd.rollout.pairing import Measured
from respsd.rollout.phases import PlacedBlock
from respsd.rollout.plan import Plan
from respsd.rollout.trials import Event, Trials

_WARM_UP_TOKENS = 32


def measure_noise(
    models: Models,
    prompts: Sequence[Sequence[int]],
    action: Action,
    *,
    persistence: int,
    max_new_tokens: int,
    concurrency: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> Noise:
    """Answer every prompt greedily, `concurrency` at a time; `progress` is called after each."""
    equal = _equal_arms(action)
    trials = Trials(
        lambda: StaticController(action, 1, CHAMPION),
        lambda contest: contest is equal,
        persistence,
        _ignore,
        rng=Random(0),
        clock=SystemClock(),
    )
    trials.follow(Plan(contests=((equal, 0.5),)))
    windows = _Windows()
    with running_engine(
        models,
        action,
        HookChain(trials, windows),
        config=EngineConfig(reserved=action, persistence=persistence),
        router=_AllUnderTest(action, trials),
    ) as engine:
        run(engine, local_request(prompts[0], Speculation(), _WARM_UP_TOKENS))
        windows.by_request.clear()

        def answer(prompt: Sequence[int]) -> None:
            run(engine, local_request(prompt, Speculation(), max_new_tokens, ignore_eos=False))
            progress()

        with ThreadPoolExecutor(max_workers=concurrency) as clients:
            list(clients.map(answer, prompts))
    about: dict[str, object] = {
        "target": models.info.target,
        "drafter": models.info.drafter,
        "dtype": models.info.dtype,
        "device": models.info.device,
        "action": str(action),
        "persistence": persistence,
        "max_new_tokens": max_new_tokens,
        "concurrency": concurrency,
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    measured = (tuple(each) for each in windows.by_request.values())
    return Noise(about, tuple(each for each in measured if each))


def _equal_arms(action: Action) -> Contest:
    """Two versions that only differ in number."""
    candidate = Arm("candidate", StaticController(action, 2, "candidate"))
    return Contest("candidate", candidate, Arm(CHAMPION, StaticController(action, 1, CHAMPION)))


class _AllUnderTest(PolicyRouter):
    """Every request alternates."""

    def __init__(self, action: Action, trials: Trials) -> None:
        controllers: dict[str, Controller] = {arm: StaticController(action, 1, arm) for arm in (BASELINE, CHAMPION)}
        super().__init__(controllers, _no_versions, action)
        self._trials = trials

    def resolve(self, speculation: Speculation) -> ControllerSource:
        del speculation
        return self._trials.enrol()


class _Windows(EngineHooks):
    """Keeps what each request's windows measured."""

    def __init__(self) -> None:
        self.by_request: dict[object, list[Measured]] = {}

    def after_window(self, window: TransitionRecord) -> None:
        block, measured = window.decision.block, Measured.of(window)
        if isinstance(block, PlacedBlock) and block.number is not None and measured.usable:
            self.by_request.setdefault(block.participant, []).append(measured)


def _ignore(event: Event) -> None:
    """The windows themselves are what is kept."""


def _no_versions(version: int) -> Controller:
    raise UnknownPolicy(str(version))
