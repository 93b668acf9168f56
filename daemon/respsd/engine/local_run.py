"""An engine run by its own process, without daemon, store or log: for warm-up, checks and measurements."""

from __future__ import annotations

import itertools
import queue
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from respsd.clock import SystemClock
from respsd.control.action import OFF, Action
from respsd.control.controller import Controller
from respsd.control.observation import ObservationSchema
from respsd.control.router import BASELINE, CHAMPION, PolicyRouter, RequestRouter
from respsd.control.static import StaticController
from respsd.engine.api import Engine
from respsd.engine.assembly import EngineConfig, Models, build_engine
from respsd.engine.events import (
    EngineEvent,
    PromptScored,
    RequestFailed,
    RequestFinished,
    TokenLogProb,
    TokensCommitted,
)
from respsd.engine.hooks import EngineHooks
from respsd.engine.loop import EngineLoop
from respsd.engine.request import GenerationRequest, SamplingParams, Speculation, StoppingParams
from respsd.engine.window import StepMeasure
from respsd.errors import UnknownPolicy
from respsd.experience.records import RequestRecord, TransitionRecord

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    token_ids: tuple[int, ...]
    text: str
    finished: RequestFinished
    log_probs: tuple[TokenLogProb, ...] = ()
    prompt_log_probs: tuple[TokenLogProb, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens of the steps per second of decoding; the first token comes from the prefill."""
        return (len(self.token_ids) - 1) / self.finished.decode_seconds

    @property
    def tau(self) -> float:
        """Mean committed tokens of a step."""
        return (len(self.token_ids) - 1) / self.finished.steps


class StepLog(EngineHooks):
    """Keeps what each step did."""

    def __init__(self) -> None:
        self.steps: list[StepMeasure] = []

    def after_step(self, arm: str, step: StepMeasure) -> None:
        """Keep it."""
        del arm
        self.steps.append(step)


class NoSink:
    """Drops every row: measuring leaves no traces in the experience log."""

    def record(self, request: RequestRecord, transitions: Sequence[TransitionRecord]) -> bool:
        """Accept and forget."""
        del request, transitions
        return True


def run(engine: Engine, request: GenerationRequest) -> Completion:
    """Submit a request and wait for its end; raises the error of a failed one."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    engine.submit(request, events.put)
    token_ids: list[int] = []
    pieces: list[str] = []
    log_probs: list[TokenLogProb] = []
    prompt_log_probs: tuple[TokenLogProb, ...] = ()
    while True:
        match events.get():
            case TokensCommitted(ids, text, scores):
                token_ids += ids
                pieces.append(text)
                log_probs += scores
            case PromptScored(scores):
                prompt_log_probs = scores
            case RequestFinished() as finished:
                return Completion(tuple(token_ids), "".join(pieces), finished, tuple(log_probs), prompt_log_probs)
            case RequestFailed(error):
                raise error


@contextmanager
def running_engine(
    models: Models,
    reserved: Action,
    hooks: EngineHooks | None = None,
    *,
    config: EngineConfig | None = None,
    router: RequestRouter | None = None,
    schema: ObservationSchema | None = None,
) -> Iterator[EngineLoop]:
    """An engine that runs actions up to `reserved`.

    :param config: the engine's sizes; without it the defaults
    :param router: who chooses for requests that fix no action; without it nobody does, and no policy version is known
    :param schema: of the observations that the router's policies see
    """
    engine = build_engine(
        models,
        router or fixed_actions_only(reserved),
        schema or ObservationSchema(feature_width=models.schema_features),
        NoSink(),
        config or EngineConfig(reserved=reserved),
        uniform=random.Random(0).random,
        clock=SystemClock(),
        hooks=hooks,
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def fixed_actions_only(reserved: Action) -> PolicyRouter:
    """A router for requests that carry their own action; others decode plainly."""
    controllers: dict[str, Controller] = {arm: StaticController(OFF, None, arm) for arm in (BASELINE, CHAMPION)}
    return PolicyRouter(controllers, _no_versions, reserved)


def fixed_request(
    prompt_ids: Sequence[int],
    action: Action,
    max_new_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    ignore_eos: bool = True,
) -> GenerationRequest:
    """A request whose every window runs `action`; greedy unless told otherwise."""
    return local_request(
        prompt_ids, Speculation(action=action), max_new_tokens, sampling=sampling, ignore_eos=ignore_eos
    )


def local_request(
    prompt_ids: Sequence[int],
    speculation: Speculation,
    max_new_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    ignore_eos: bool = True,
) -> GenerationRequest:
    """A request with an id of its own; greedy unless told otherwise."""
    return GenerationRequest(
        request_id=f"local-{next(_numbers)}",
        prompt_ids=tuple(prompt_ids),
        stopping=StoppingParams(max_new_tokens=max_new_tokens, ignore_eos=ignore_eos),
        sampling=sampling or SamplingParams(),
        speculation=speculation,
    )


def _no_versions(version: int) -> Controller:
    raise UnknownPolicy(str(version))
