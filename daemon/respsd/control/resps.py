"""The Re-SpS controller: a stored policy that chooses each window's action from its observation."""

from __future__ import annotations

import numpy as np

from policy_store import StoredPolicy
from respsd.control.action import Action, ActionTable
from respsd.control.controller import Decision, Vector
from respsd.control.network import Logits, PolicyNetwork, log_softmax
from respsd.control.observation import ObservationSchema
from respsd.control.reserve import excess
from respsd.errors import InvalidRequest, PolicyRefused

_GOLDEN_TOLERANCE = 1e-4
"""Largest difference, relative to the largest logit, that another machine's arithmetic can explain."""


class RespsController:
    """Chooses the most probable action, or samples at a temperature."""

    def __init__(
        self,
        policy: StoredPolicy,
        arm: str,
        schema: ObservationSchema,
        reserved: Action,
        *,
        temperature: float | None = None,
    ) -> None:
        """Take a stored policy into service.

        :param schema: what the engine builds observations by
        :param reserved: the largest action that the engine can run
        :param temperature: of the softmax that actions are sampled from; None takes the most probable one

        Raises PolicyRefused where the policy was made for other observations, has an action that the engine cannot
        run, or gives other logits for its golden observation than when it was made.
        """
        manifest = policy.manifest
        self._version = manifest.version
        self._arm = arm
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature {temperature} is not positive")
        self._temperature = temperature
        self._width = schema.width
        found = (manifest.observation_schema or {}).get("fingerprint")
        if found != schema.fingerprint:
            raise self._refused(f"it was made for observations {found}, the engine builds {schema.fingerprint}")
        self._table = self._checked_table(manifest.action_table, reserved)
        self._network = PolicyNetwork(policy.weights, manifest.normaliser)
        if manifest.golden is None:
            raise self._refused("it has no golden observation")
        self._check_golden(manifest.golden.observation, manifest.golden.logits)

    @property
    def version(self) -> int:
        """The policy version."""
        return self._version

    def choose(self, observation: Vector, uniform: float) -> Decision:
        """Choose for one window; raises PolicyRefused where the numbers in or out are not what they must be."""
        if observation.shape != (self._width,):
            raise self._refused(f"it was shown an observation of shape {observation.shape}, not ({self._width},)")
        logits = self._network.logits(observation)
        if not np.isfinite(logits).all():
            raise self._refused("its output is not finite")
        if self._temperature is None:
            index, log_prob = int(logits.argmax()), 0.0
        else:
            index, log_prob = sample(log_softmax(logits / self._temperature), uniform)
        return Decision(
            action=self._table[index],
            log_prob=log_prob,
            arm=self._arm,
            policy_version=self._version,
            action_index=index,
            table_fingerprint=self._table.fingerprint,
        )

    def _checked_table(self, triples: tuple[tuple[int, int, int], ...], reserved: Action) -> ActionTable:
        try:
            table = ActionTable(tuple(Action(*triple) for triple in triples))
        except InvalidRequest as fault:
            raise self._refused(str(fault)) from fault
        for action in table:
            over = excess(action, reserved)
            if over is not None:
                raise self._refused(f"action {action}: the engine's limit for {over.knob} is {over.limit}")
        return table

    def _check_golden(self, observation: tuple[float, ...], expected: tuple[float, ...]) -> None:
        logits = self._network.logits(np.array(observation, np.float32))
        scale = max(1.0, max(map(abs, expected)))
        difference = float(np.abs(logits - np.array(expected)).max())
        if not difference <= _GOLDEN_TOLERANCE * scale:  # written so that NaN fails
            raise self._refused(f"its logits for the golden observation are off by {difference:.3g}")

    def _refused(self, fault: str) -> PolicyRefused:
        return PolicyRefused(self._version, fault)


def sample(log_probs: Logits, uniform: float) -> tuple[int, float]:
    """Draw by the inverse of the cumulative distribution: index and log-probability.

    :param log_probs: [actions], normalised
    :param uniform: in [0, 1)
    """
    cumulative = np.cumsum(np.exp(log_probs))
    # side="right" never lands on an action of probability 0; rounding may make the product reach the last sum
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if index == len(cumulative):
        index = int(np.flatnonzero(np.exp(log_probs))[-1])
    return index, float(log_probs[index])
