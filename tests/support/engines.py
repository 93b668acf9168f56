"""Real engines over the tiny pair, with a controller of the test's choice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from support import models as tiny_models

from respsd.clock import SystemClock
from respsd.control.action import OFF, Action
from respsd.control.controller import Decision
from respsd.control.observation import ObservationSchema
from respsd.control.router import PolicyRouter
from respsd.control.static import StaticController
from respsd.engine.assembly import EngineConfig, Models, build_engine, load_models
from respsd.engine.hooks import EngineHooks
from respsd.engine.local_run import Completion, run
from respsd.engine.loop import EngineLoop, LoopLimits
from respsd.engine.request import GenerationRequest, SamplingParams, Speculation, StoppingParams
from respsd.engine.window import StepMeasure
from respsd.errors import UnknownPolicy
from respsd.experience.records import RequestRecord, TransitionRecord

LARGEST = Action(128, 8, 32)
_numbers = itertools.count()


@dataclass
class MemorySink:
    """Keeps what a recorder would write."""

    requests: list[RequestRecord] = field(default_factory=list)
    transitions: list[TransitionRecord] = field(default_factory=list)
    full: bool = False

    def record(self, request: RequestRecord, transitions: Sequence[TransitionRecord]) -> bool:
        if self.full:
            return False
        self.requests.append(request)
        self.transitions += transitions
        return True


@dataclass
class CountingHooks(EngineHooks):
    """Keeps what metrics would count."""

    steps: list[tuple[str, StepMeasure]] = field(default_factory=list)
    switches: list[tuple[Decision, Decision]] = field(default_factory=list)
    faults: int = 0
    prefills: int = 0
    failed: int = 0

    def after_prefill(self, seconds_since_submit: float) -> None:
        self.prefills += 1

    def after_step(self, arm: str, step: StepMeasure) -> None:
        self.steps.append((arm, step))

    def after_switch(self, before: Decision, decision: Decision) -> None:
        self.switches.append((before, decision))

    def drafter_fault(self) -> None:
        self.faults += 1

    def request_failed(self) -> None:
        self.failed += 1


class AheadClock(SystemClock):
    """The machine's clock, some seconds ahead."""

    ahead_seconds = 0.0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + round(self.ahead_seconds * 1e9)


@dataclass
class Rig:
    """An engine that runs, and everything around it that a test looks at."""

    engine: EngineLoop
    models: Models
    router: PolicyRouter
    sink: MemorySink
    hooks: CountingHooks
    schema: ObservationSchema

    def generate(self, request: GenerationRequest) -> Completion:
        return run(self.engine, request)


def no_versions(version: int) -> StaticController:
    raise UnknownPolicy(str(version))


def static_router(action: Action, *, version: int | None = 1, reserved: Action = LARGEST) -> PolicyRouter:
    """A champion and a baseline that always take one action."""
    arms = {alias: StaticController(action, version, alias) for alias in ("baseline", "champion")}
    return PolicyRouter(arms, no_versions, reserved)


def load_tiny(drafter: Path | None = None, *, with_drafter: bool = True, target: Path | None = None) -> Models:
    """The tiny pair as a daemon loads it, or another drafter or target of its shape."""
    target_folder, drafter_folder = tiny_models.folders()
    return load_models(
        target or target_folder,
        (drafter or drafter_folder) if with_drafter else None,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@contextmanager
def running(
    models: Models,
    router: PolicyRouter | None = None,
    *,
    persistence: int = 4,
    kv_tokens: int | None = 4096,
    limits: LoopLimits | None = None,
) -> Iterator[Rig]:
    """Start an engine and stop it at the end."""
    router = router or static_router(Action(16, 4, 4))
    sink, hooks = MemorySink(), CountingHooks()
    schema = ObservationSchema(feature_width=models.schema_features, projection=8)
    config = EngineConfig(reserved=LARGEST, persistence=persistence, kv_tokens=kv_tokens, limits=limits or LoopLimits())
    engine = build_engine(
        models, router, schema, sink, config, uniform=random.Random(0).random, clock=SystemClock(), hooks=hooks
    )
    engine.start()
    try:
        yield Rig(engine, models, router, sink, hooks, schema)
    finally:
        engine.stop()


def request(
    prompt: Sequence[int],
    new_tokens: int = 32,
    *,
    action: Action | None = None,
    policy: str | None = None,
    sampling: SamplingParams | None = None,
    ignore_eos: bool = True,
    **stopping: object,
) -> GenerationRequest:
    """A request with a fresh id; greedy, and blind to EOS unless told otherwise."""
    return GenerationRequest(
        request_id=f"test-{next(_numbers)}",
        prompt_ids=tuple(prompt),
        stopping=StoppingParams(max_new_tokens=new_tokens, ignore_eos=ignore_eos, **stopping),  # type: ignore[arg-type]
        sampling=sampling or SamplingParams(),
        speculation=Speculation(action=action, policy=policy),
    )


def plain(prompt: Sequence[int], new_tokens: int = 32, **options: object) -> GenerationRequest:
    """The same request without speculation."""
    return request(prompt, new_tokens, action=OFF, **options)  # type: ignore[arg-type]
