"""Manifests of new policy versions: what the daemon writes into the policy store, and how it reads actions back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from policy_store import Architecture, Golden, ManifestDraft, Normaliser
from policy_store.manifest import Triple
from policy_store.weights import Weights
from respsd.control.action import Action, ActionTable
from respsd.control.network import PolicyNetwork
from respsd.control.observation import ObservationSchema


def triple(action: Action) -> Triple:
    """An action as the store writes it."""
    return (action.total_tokens, action.depth, action.top_k)


def static_manifest(action: Action, *, code_version: str, note: str) -> ManifestDraft:
    """A version that always chooses `action`; its table is that one action, so no change of tables can break it."""
    return ManifestDraft(
        kind="static",
        action_table=(triple(action),),
        action=triple(action),
        code_version=code_version,
        note=note,
    )


def resps_manifest(
    weights: Weights,
    table: ActionTable,
    schema: ObservationSchema,
    rng: np.random.Generator,
    *,
    hidden_sizes: tuple[int, ...] = (128, 128),
    normaliser: Normaliser | None = None,
    parent: int | None = None,
    training_window: Mapping[str, object] | None = None,
    code_version: str,
    note: str,
) -> ManifestDraft:
    """A version that runs `weights`, with a golden observation drawn from `rng` and the logits for it."""
    observation = rng.standard_normal(schema.width).astype(np.float32)
    logits = PolicyNetwork(weights, normaliser).logits(observation)
    return ManifestDraft(
        kind="resps",
        action_table=tuple(map(triple, table)),
        parent=parent,
        architecture=Architecture(hidden_sizes),
        observation_schema=schema.to_dict(),
        normaliser=normaliser,
        golden=Golden(tuple(observation.tolist()), tuple(logits.tolist())),
        training_window=training_window,
        code_version=code_version,
        note=note,
    )
