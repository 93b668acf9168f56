"""The policy network in numpy: a tanh MLP from observation to logits over the action table.

A window needs one forward of a few small matrix-vector products; numpy does it in microseconds, where
Stable-Baselines3's `predict` spends most of its time on conversions. Tensor names are those of SB3's MlpPolicy, so that
the learner loads and stores the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from policy_store import Normaliser
from respsd.control.controller import Vector
from respsd.control.linear import matvec

FloatArray = npt.NDArray[np.float32]
Logits = npt.NDArray[np.float64]

_HIDDEN_GAIN, _ACTION_GAIN, _VALUE_GAIN = math.sqrt(2), 0.01, 1.0
"""Orthogonal initialisation as SB3 scales it: the first policy is nearly uniform."""


class PolicyNetwork:
    """The actor of one policy version."""

    def __init__(self, weights: Mapping[str, FloatArray], normaliser: Normaliser | None) -> None:
        """:param weights: tensors that fit together, as the policy store checks them; the critic's are ignored."""
        self._mean = None if normaliser is None else np.array(normaliser.mean, np.float32)
        self._std = None if normaliser is None else np.array(normaliser.std, np.float32)
        prefix = "mlp_extractor.policy_net."
        hidden = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in weights if name.startswith(prefix)})
        self._hidden = [(weights[f"{prefix}{i}.weight"], weights[f"{prefix}{i}.bias"]) for i in hidden]
        self._head = weights["action_net.weight"], weights["action_net.bias"]

    def logits(self, observation: Vector) -> Logits:
        """Unnormalised log-probabilities, float64 [actions], of an observation [width]."""
        x = observation
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        for weight, bias in self._hidden:
            x = np.tanh(matvec(weight, x) + bias)
        weight, bias = self._head
        return (matvec(weight, x) + bias).astype(np.float64)


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities [actions]; stable for logits of any finite size."""
    shifted = logits - logits.max()
    normalised: Logits = shifted - np.log(np.exp(shifted).sum())
    return normalised


def random_policy_weights(
    width: int, actions: int, rng: np.random.Generator, hidden_sizes: tuple[int, ...] = (128, 128)
) -> dict[str, FloatArray]:
    """Weights of a fresh policy, actor and critic, drawn as SB3 draws them: orthogonal, zero biases."""
    weights: dict[str, FloatArray] = {}

    def layer(name: str, outputs: int, inputs: int, gain: float) -> None:
        weights[f"{name}.weight"] = _orthogonal(outputs, inputs, gain, rng)
        weights[f"{name}.bias"] = np.zeros(outputs, np.float32)

    for trunk, head, outputs, gain in (
        ("policy_net", "action_net", actions, _ACTION_GAIN),
        ("value_net", "value_net", 1, _VALUE_GAIN),
    ):
        inputs = width
        for number, size in enumerate(hidden_sizes):
            # every other module of SB3's Sequential is the activation
            layer(f"mlp_extractor.{trunk}.{2 * number}", size, inputs, _HIDDEN_GAIN)
            inputs = size
        layer(head, outputs, inputs, gain)
    return weights


def _orthogonal(rows: int, columns: int, gain: float, rng: np.random.Generator) -> FloatArray:
    """A uniformly drawn matrix [rows, columns] with orthonormal rows or columns, whichever are fewer, times `gain`.

    Gram-Schmidt on Gaussian vectors, each cleaned twice because once leaves rounding errors. LAPACK's threaded QR gives
    the same and takes seconds on a busy machine.
    """
    basis = rng.standard_normal((min(rows, columns), max(rows, columns)))
    for number, vector in enumerate(basis):
        before = basis[:number]
        for _ in range(2):
            vector -= (before @ vector) @ before
        vector /= np.linalg.norm(vector)
    return (gain * (basis if rows < columns else basis.T)).astype(np.float32)
