"""What tests of the policies' operator share: intents, a clock, and short ways to say what serves and what moved."""

from __future__ import annotations

import numpy as np

from policy_store import PolicyStore
from respsd.control.observation import ObservationSchema
from respsd.control.policy_change import Intent, PolicyChange
from respsd.control.router import PolicyRouter
from respsd.engine.request import Speculation

ANN = Intent("operator:ann", "because", {"n": 120})
DRY = Intent("operator:ann", dry_run=True)
ROLLOUT = Intent("rollout", "slower")


class NoonClock:
    """Stands still."""

    def time_ns(self) -> int:
        return 1_796_040_000_000_000_000

    def monotonic_ns(self) -> int:
        return 0


def serves(router: PolicyRouter, schema: ObservationSchema, policy: str | None = None) -> tuple[int | None, str]:
    """Version and arm of the next window's decision."""
    decision = router.resolve(Speculation(policy=policy)).current().choose(np.zeros(schema.width, np.float32), 0.5)
    return decision.policy_version, decision.arm


def moves(change: PolicyChange) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(each.event, each.alias, each.from_version, each.to_version) for each in change.entries]


def damage(store: PolicyStore, version: int) -> None:
    (store.path / "versions" / str(version) / "policy.safetensors").write_bytes(b"")


def states(store: PolicyStore) -> dict[int, str]:
    return {each.version: each.state for each in store.list()}
