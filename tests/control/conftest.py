"""Small stored policies: a table of four actions, observations of five projected features and the signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.operating import NoonClock
from support.starts import BASELINE, Start

from policy_store import Manifest, ManifestDraft, PolicyStore, StoredPolicy
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.bootstrap import open_policies, policy_loader
from respsd.control.manifests import resps_manifest
from respsd.control.network import random_policy_weights
from respsd.control.observation import ObservationSchema
from respsd.control.operator import PolicyOperator
from respsd.control.router import PolicyRouter

NOON = 1_796_040_000_000_000_000
TABLE = ActionTable((OFF, Action(8, 3, 3), Action(16, 4, 4), Action(32, 5, 8)))
SCHEMA = ObservationSchema(feature_width=12, projection=5)
MakePolicy = Callable[..., StoredPolicy]


@pytest.fixture
def table() -> ActionTable:
    return TABLE


@pytest.fixture
def schema() -> ObservationSchema:
    return SCHEMA


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PolicyStore]:
    with PolicyStore(tmp_path / "policies", lambda: NOON) as opened:
        yield opened


def draft_and_weights(bias: tuple[float, ...]) -> tuple[ManifestDraft, dict[str, np.ndarray]]:
    """A policy whose logits are `bias` whatever it sees."""
    rng = np.random.default_rng(0)
    weights = random_policy_weights(SCHEMA.width, len(TABLE), rng, (8,))
    weights["action_net.weight"] = np.zeros_like(weights["action_net.weight"])
    weights["action_net.bias"] = np.array(bias, np.float32)
    draft = resps_manifest(weights, TABLE, SCHEMA, rng, hidden_sizes=(8,), code_version="0", note="")
    return draft, weights


@pytest.fixture
def make_policy() -> MakePolicy:
    """Makes a policy with these constant logits; keywords change its manifest."""

    def make(*bias: float, version: int = 5, **changes: object) -> StoredPolicy:
        draft, weights = draft_and_weights(bias or (0.0, 1.0, 3.0, 2.0))
        manifest = Manifest.publish(
            replace(draft, **changes), version=version, created="2026-11-30T12:00:00Z", weights_sha256="00" * 32
        )
        return StoredPolicy(manifest, weights)

    return make


@pytest.fixture
def publish(store: PolicyStore) -> Callable[..., int]:
    """Stores a policy with these constant logits."""

    def create(*bias: float) -> int:
        draft, weights = draft_and_weights(bias)
        return store.create(draft, weights, actor="test")

    return create


@pytest.fixture
def router(store: PolicyStore, table: ActionTable, schema: ObservationSchema) -> PolicyRouter:
    """A started daemon's: version 1 is baseline and champion, 2 the learner."""
    return open_policies(store, table, schema, Action(16, 4, 4), rng=np.random.default_rng(0), code_version="0")


@pytest.fixture
def operator(store: PolicyStore, table: ActionTable, schema: ObservationSchema, router: PolicyRouter) -> PolicyOperator:
    return PolicyOperator(store, policy_loader(store, schema, table.largest, None), router, NoonClock())


@pytest.fixture
def good(operator: PolicyOperator, publish: Callable[..., int]) -> list[int]:
    """Three versions that choose the table's first, second and third action."""
    return [publish(*(3.0 if index == best else 0.0 for index in range(4))) for best in range(3)]


@pytest.fixture
def start(store: PolicyStore, table: ActionTable, schema: ObservationSchema) -> Start:
    """Starts a daemon on the store, as often as called."""

    def open_again(baseline: Action = BASELINE, **changes: object) -> PolicyRouter:
        arguments: dict[str, object] = {
            "store": store,
            "table": table,
            "schema": schema,
            "rng": np.random.default_rng(0),
            "code_version": "0.1.0",
        }
        return open_policies(baseline_action=baseline, **(arguments | changes))  # type: ignore[arg-type]

    return open_again
