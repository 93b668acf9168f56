"""Daemons' policies as a start opens them, and what happens to a store between two starts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policy_store import PolicyStore
from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.control.observation import ObservationSchema
from respsd.control.router import PolicyRouter
from respsd.engine.request import Speculation

BASELINE = Action(16, 4, 4)
Start = Callable[..., PolicyRouter]
Publish = Callable[..., int]


def decide(
    router: PolicyRouter, schema: ObservationSchema, policy: str | None = None, uniform: float = 0.5
) -> Decision:
    """One choice by a version or alias."""
    controller = router.resolve(Speculation(policy=policy)).current()
    return controller.choose(np.zeros(schema.width, np.float32), uniform)


def damage(store: PolicyStore, version: int) -> None:
    """Empty a version's weights."""
    (store.path / "versions" / str(version) / "policy.safetensors").write_bytes(b"")


def promote(store: PolicyStore, version: int, alias: str = "champion") -> None:
    """Move an alias."""
    store.set_alias(alias, version, actor="test", reason="test")
