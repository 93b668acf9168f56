"""Weights: named float32 arrays in Stable-Baselines3's MlpPolicy names, as safetensors bytes.

The actor's tensors must be there; the critic's may be, all of them or none, and are kept for the learner.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from policy_store.errors import InvalidWeights
from policy_store.manifest import ManifestDraft

Weights = Mapping[str, npt.NDArray[np.float32]]


def actor_shapes(draft: ManifestDraft) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a version's actor has; none for a static version."""
    return _network_shapes(draft, "policy_net", "action_net", len(draft.action_table))


def critic_shapes(draft: ManifestDraft) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a version's critic has, where it is stored."""
    return _network_shapes(draft, "value_net", "value_net", 1)


def check_weights(draft: ManifestDraft, weights: Weights) -> None:
    """Raise InvalidWeights unless names, types, shapes and numbers are what the manifest says."""
    required = actor_shapes(draft)
    optional = critic_shapes(draft)
    if any(name in weights for name in optional):
        required |= optional
    for name in required:
        if name not in weights:
            raise InvalidWeights(name, "is missing")
    for name, tensor in weights.items():
        if name not in required:
            raise InvalidWeights(name, "is not a tensor of this architecture")
        if tensor.dtype != np.float32:
            raise InvalidWeights(name, f"is {tensor.dtype}, not float32")
        if tensor.shape != required[name]:
            raise InvalidWeights(name, f"has shape {list(tensor.shape)}, not {list(required[name])}")
        if not np.isfinite(tensor).all():
            raise InvalidWeights(name, "holds a number that is not finite")


def encode_weights(weights: Weights) -> bytes:
    """Weights as the bytes of a safetensors file."""
    # safetensors reads the memory as it lies, so every array has to be contiguous
    return save({name: np.ascontiguousarray(tensor) for name, tensor in weights.items()})


def decode_weights(data: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """Read a safetensors file's bytes; the arrays cannot be written to."""
    try:
        tensors = load(data)
    except (SafetensorError, KeyError, ValueError) as fault:  # KeyError: a dtype that numpy does not have
        raise InvalidWeights("file", f"cannot be read: {fault}") from fault
    for tensor in tensors.values():
        tensor.flags.writeable = False
    return tensors


def _network_shapes(draft: ManifestDraft, trunk: str, head: str, outputs: int) -> dict[str, tuple[int, ...]]:
    if draft.architecture is None:
        return {}
    shapes: dict[str, tuple[int, ...]] = {}
    width = draft.observation_width
    for layer, size in enumerate(draft.architecture.hidden_sizes):
        name = f"mlp_extractor.{trunk}.{2 * layer}"  # every other module of SB3's Sequential is the activation
        shapes |= {f"{name}.weight": (size, width), f"{name}.bias": (size,)}
        width = size
    return shapes | {f"{head}.weight": (outputs, width), f"{head}.bias": (outputs,)}
