"""An engine whose time is what the serving policy costs: the tiny pair, a clock that policies wind, a whole rollout."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from support.engines import LARGEST, MemorySink, load_tiny

from policy_store import PolicyStore, StoredPolicy
from respsd.control.action import Action
from respsd.control.controller import Controller, Decision, Vector
from respsd.control.manifests import static_manifest
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.control.policy_change import Intent
from respsd.control.router import PolicyRouter
from respsd.control.traffic import Traffic
from respsd.engine.assembly import EngineConfig, build_engine
from respsd.engine.local_run import run
from respsd.engine.loop import EngineLoop
from respsd.engine.request import GenerationRequest
from respsd.rollout.evidence import Evidence, NoEvidence
from respsd.rollout.off_version import off_version
from respsd.rollout.rollout import Rollout
from respsd.settings_learning import RolloutSettings

ACTION = Action(8, 3, 3)
MILLISECOND = 10**6


@dataclass
class WoundClock:
    """Every reading costs what the policy that chose last costs, so that a step's time is that policy's."""

    cost_ns: int = MILLISECOND
    now_ns: int = 1_796_040_000_000_000_000

    def monotonic_ns(self) -> int:
        self.now_ns += self.cost_ns
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns


@dataclass
class PricedPolicy:
    """A policy that always takes one action and says what a step under it costs; it may fail."""

    clock: WoundClock
    version: int
    arm: str
    cost_ns: int
    faults: Iterator[Exception | None] | None = None
    action: Action = ACTION

    def choose(self, observation: Vector, uniform: float) -> Decision:
        fault = None if self.faults is None else next(self.faults, None)
        if fault is not None:
            raise fault
        self.clock.cost_ns = self.cost_ns
        return Decision(self.action, 0.0, self.arm, self.version, 0, "table")


@dataclass
class PricedLoader:
    """Makes controllers of stored versions by the price that a test put on each."""

    clock: WoundClock
    prices: Mapping[int, int]
    faults: dict[int, Iterator[Exception | None]] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)

    def controller(self, version: int, arm: str) -> Controller:
        action = self.actions.get(version, ACTION)
        return PricedPolicy(self.clock, version, arm, self.prices[version], self.faults.get(version), action)

    def admit(self, policy: StoredPolicy, arm: str) -> Controller:
        return self.controller(policy.manifest.version, arm)


@dataclass
class PricedRig:
    """A running engine under a rollout."""

    engine: EngineLoop
    store: PolicyStore
    operator: PolicyOperator
    router: PolicyRouter
    rollout: Rollout
    loader: PricedLoader
    sink: MemorySink
    pumping: threading.Lock = field(default_factory=threading.Lock)

    def generate(self, request: GenerationRequest) -> Sequence[int]:
        """Answer a request; the rollout hears of it at once."""
        tokens = run(self.engine, request).token_ids
        with self.pumping:
            self.rollout.pump()
        return tokens

    def propose(self, version: int) -> None:
        """Make a version the candidate."""
        self.operator.set_candidate(version, Intent("update", "a test proposes it"))
        self.rollout.pump()

    @property
    def events(self) -> list[str]:
        """The audit log's events."""
        return [each.event for each in self.store.audit()]


@contextmanager
def priced_rollout(
    folder: Path, prices: Mapping[int, int], evidence: Evidence | None = None, **settings: object
) -> Iterator[PricedRig]:
    """Start it: version 1 is baseline and champion, the others are stored and wait; pumped by hand."""
    values: dict[str, object] = {"shadow_windows": 2, "gate_pairs": 1, "holdout_off": 0.0}
    clock = WoundClock()
    loader = PricedLoader(clock, prices)
    models = load_tiny()
    with PolicyStore(folder) as store:
        missing = len(prices) - len(store.list())
        for _ in range(missing):
            store.create(static_manifest(ACTION, code_version="test", note="priced"), actor="test")
        for alias in ("baseline", "champion"):
            if alias not in store.aliases():
                store.set_alias(alias, 1, actor="test", reason="the first")
        router = PolicyRouter(
            {alias: loader.controller(version, alias) for alias, version in store.aliases().items()},
            lambda version: loader.controller(version, "named"),
            LARGEST,
        )
        operator = PolicyOperator(store, loader, router, clock)
        rollout = Rollout(
            router,
            operator,
            RolloutSettings(**(values | settings)),  # type: ignore[arg-type]
            evidence or NoEvidence(),
            persistence=4,
            off_version=lambda: off_version(store, actor="rollout", code_version="test"),
            rng=Random(3),
            clock=replace(clock),
        )
        router.on_fault = rollout.on_fault
        sink = MemorySink()
        engine = build_engine(
            models,
            Traffic(router, 0.0, lambda: 0.5, rollout.enrol),
            ObservationSchema(feature_width=models.schema_features, projection=8),
            sink,
            EngineConfig(reserved=LARGEST, persistence=4, kv_tokens=4096),
            uniform=Random(0).random,
            clock=clock,
            hooks=rollout.trials,
        )
        rollout.pump()
        engine.start()
        try:
            yield PricedRig(engine, store, operator, router, rollout, loader, sink)
        finally:
            engine.stop()
            rollout.close()
