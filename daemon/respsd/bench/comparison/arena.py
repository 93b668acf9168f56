"""Where methods meet: one engine and one transformers process, loaded once, and a decoder for each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from respsd.bench.comparison.answers import Decoder
from respsd.bench.comparison.engine_decoder import EngineDecoder, MeasuredEngine
from respsd.bench.comparison.methods import Kind, Method
from respsd.bench.comparison.policy_time import PolicyTime, TimedRouter
from respsd.bench.comparison.stored_policies import StoredPolicies
from respsd.bench.comparison.transformers_decoder import PLAIN, Drafting, TransformersModels
from respsd.bench.comparison.transformers_process import TransformersMethod, TransformersProcess, transformers_process
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.batch_plan import BatchPlan, PlannedController
from respsd.control.observation import ObservationSchema
from respsd.control.router import BASELINE, PolicyRouter
from respsd.engine.admission import scratch_rows
from respsd.engine.assembly import EngineConfig, Models, Shapes, affordable_kv_tokens
from respsd.engine.local_run import fixed_actions_only, running_engine
from respsd.engine.loop import LoopLimits
from respsd.engine.request import Speculation
from respsd.errors import EngineFault, PolicyRefused

_PROJECTION = 64
"""Width of projected features where no policy says another; what the daemon's own default is."""


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """How engine and transformers are set up."""

    target_folder: Path
    """The checkpoint that transformers loads for itself."""
    assistant_folder: Path | None = None
    most_streams: int = 1
    persistence: int = 10
    """Steps of a window."""
    limits: LoopLimits = field(default_factory=LoopLimits)
    shapes: Shapes | None = None
    table: ActionTable = field(default_factory=lambda: ActionTable((OFF,)))
    """Actions that a sweep may try."""
    plan: BatchPlan | None = None
    """The calibrated baseline; None: these models were not calibrated on this machine."""
    policies: StoredPolicies | None = None
    policy_temperature: float | None = None


class Arena:
    """Makes the decoders of methods; lives inside `open_arena`."""

    def __init__(
        self,
        engine: MeasuredEngine | None,
        transformers: TransformersProcess | None,
        policies: StoredPolicies | None,
    ) -> None:
        self._engine = engine
        self._transformers = transformers
        self._policies = policies

    def decoder(self, method: Method, action: Action | None = None) -> Decoder:
        """The decoder of a method. :param action: what a SWEEP found."""
        match method.kind:
            case Kind.TRANSFORMERS:
                return self._transformers_method(PLAIN)
            case Kind.ASSISTED:
                return self._transformers_method(Drafting(assisted=True))
            case Kind.PROMPT_LOOKUP:
                return self._transformers_method(Drafting(prompt_lookup_tokens=method.drafted_tokens))
            case Kind.POLICY:
                assert self._policies is not None
                assert method.policy is not None
                return self._of_engine(Speculation(policy=str(self._policies.versions[method.policy])))
            case Kind.CALIBRATED:
                return self._of_engine(Speculation(policy=BASELINE))
        return self.constant(action or method.action or OFF)

    def constant(self, action: Action) -> Decoder:
        """Our engine under one action."""
        return self._of_engine(Speculation(action=action))

    def _of_engine(self, speculation: Speculation) -> Decoder:
        assert self._engine is not None
        return EngineDecoder(self._engine, speculation)

    def _transformers_method(self, drafting: Drafting) -> Decoder:
        assert self._transformers is not None
        return TransformersMethod(self._transformers, drafting)


@contextmanager
def open_arena(models: Models, methods: Sequence[Method], options: ArenaOptions) -> Iterator[Arena]:
    """Start what the methods need; it ends with the block.

    Raises EngineFault at the end where a policy failed and another action was run in its place.
    """
    with ExitStack() as stack:
        transformers = None
        if any(method.is_transformers for method in methods):
            transformers = stack.enter_context(transformers_process(_for_transformers(models, options)))
        engine, router = None, None
        if not all(method.is_transformers for method in methods):
            reserved = _reserved(methods, options)
            schema = _schema(models, options.policies)
            router = _router(options, schema, reserved)
            log = PolicyTime()
            running = running_engine(
                models,
                reserved,
                log,
                config=EngineConfig(
                    reserved=reserved,
                    persistence=options.persistence,
                    kv_tokens=_kv_tokens(models, options.most_streams, reserved),
                    limits=replace(options.limits, max_running=options.most_streams),
                    shapes=options.shapes,
                ),
                router=TimedRouter(router, log),
                schema=schema,
            )
            engine = MeasuredEngine(stack.enter_context(running), log)
        yield Arena(engine, transformers, options.policies)
    if router is not None and (faults := router.faults()):
        raise EngineFault(f"policies failed in these numbers of windows, by version: {faults}; their figures are void")


def _kv_tokens(models: Models, streams: int, reserved: Action) -> int:
    """Whole contexts, or what the memory allows: on a GPU transformers needs its share."""
    wanted = streams * (models.info.context_length + scratch_rows(reserved))
    return min(wanted, affordable_kv_tokens(models.target.layout))


def _for_transformers(models: Models, options: ArenaOptions) -> TransformersModels:
    return TransformersModels(
        target=options.target_folder,
        dtype=getattr(torch, models.info.dtype),
        device=models.info.device,
        eos_token_ids=models.info.eos_token_ids,
        assistant=options.assistant_folder,
    )


def _reserved(methods: Sequence[Method], options: ArenaOptions) -> Action:
    actions = [OFF, *(method.action for method in methods if method.action is not None)]
    if any(method.kind is Kind.SWEEP for method in methods):
        actions += options.table
    if options.policies is not None:
        actions += options.policies.actions
    if options.plan is not None:
        actions += options.plan.actions
    return ActionTable(tuple(dict.fromkeys(actions))).largest


def _schema(models: Models, policies: StoredPolicies | None) -> ObservationSchema:
    if policies is not None and policies.schema is not None:
        if policies.schema.feature_width != models.schema_features:
            width = policies.schema.feature_width
            fault = f"it sees features of {width} numbers, these models give {models.schema_features}"
            raise PolicyRefused(max(policies.versions.values()), fault)
        return policies.schema
    return ObservationSchema(feature_width=models.schema_features, projection=_PROJECTION)


def _router(options: ArenaOptions, schema: ObservationSchema, reserved: Action) -> PolicyRouter:
    if options.policies is None:
        router = fixed_actions_only(reserved)
    else:
        router = options.policies.router(schema, reserved, options.policy_temperature, options.plan)
    if options.plan is not None:
        router.swap(BASELINE, PlannedController(options.plan, None, BASELINE))
    return router
