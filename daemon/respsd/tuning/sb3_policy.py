"""Stored weights in and out of a Stable-Baselines3 PPO; names and numbers are the same on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy

from policy_store.weights import Weights
from respsd.control.network import random_policy_weights
from respsd.settings_learning import LearningSettings
from respsd.tuning.windows import Floats

Observations = npt.NDArray[np.float32]
_BATCH_ROWS = 4096


class _Spaces(gymnasium.Env[Observations, np.int64]):
    """Tells PPO the shapes; nothing is ever played in it."""

    def __init__(self, width: int, actions: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        raise NotImplementedError("the learner trains on logged windows")

    def step(self, action: np.int64) -> tuple[Observations, SupportsFloat, bool, bool, dict[str, Any]]:
        raise NotImplementedError("the learner trains on logged windows")


def make_ppo(weights: Weights, settings: LearningSettings, *, seed: int) -> PPO:
    """A PPO on the processor that has these weights, actor and critic, and this project's hyperparameters."""
    actions, _ = weights["action_net.weight"].shape
    layers = sorted(
        (int(name.split(".")[2]), tensor.shape)
        for name, tensor in weights.items()
        if name.startswith("mlp_extractor.policy_net.") and name.endswith("weight")
    )
    width = layers[0][1][1]
    hidden = [shape[0] for _, shape in layers]
    ppo = PPO(
        "MlpPolicy",
        _Spaces(width, actions),
        learning_rate=settings.learning_rate,
        n_steps=settings.batch_size,  # of a buffer that is never used: rollouts come from the log
        batch_size=settings.batch_size,
        n_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_range,
        ent_coef=settings.entropy_coefficient,
        vf_coef=settings.value_coefficient,
        max_grad_norm=settings.max_gradient_norm,
        target_kl=settings.target_kl,
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}},
        seed=seed,
        device="cpu",
    )
    ppo.set_logger(Logger(None, []))  # train() records into it; `learn`, which makes one, is never called
    load_weights(ppo.policy, weights)
    return ppo


def load_weights(policy: ActorCriticPolicy, weights: Weights) -> None:
    """Set every parameter; raises RuntimeError where a name or a shape differs."""
    policy.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in weights.items()})


def policy_weights(policy: ActorCriticPolicy) -> dict[str, npt.NDArray[np.float32]]:
    """Every parameter, as the policy store takes it."""
    return {name: tensor.detach().numpy().copy() for name, tensor in policy.state_dict().items()}


def with_critic(weights: Mapping[str, npt.NDArray[np.float32]], rng: np.random.Generator) -> Weights:
    """`weights`, with a fresh critic where a version was stored without one."""
    if "value_net.weight" in weights:
        return weights
    actions, _ = weights["action_net.weight"].shape
    hidden = tuple(len(b) for name, b in sorted(weights.items()) if name.startswith("mlp_") and name.endswith("bias"))
    width = weights["mlp_extractor.policy_net.0.weight"].shape[1]
    fresh = random_policy_weights(width, actions, rng, hidden)
    return {**{name: tensor for name, tensor in fresh.items() if "value_net" in name}, **weights}


@torch.no_grad()
def log_probs(policy: ActorCriticPolicy, observations: Observations) -> Floats:
    """Log-probabilities [n, actions], float64, of normalised observations [n, width]."""
    assert isinstance(policy.action_net, torch.nn.Linear)
    parts = []
    for part in _batches(observations):
        distribution = policy.get_distribution(torch.from_numpy(part)).distribution
        assert isinstance(distribution, torch.distributions.Categorical)
        parts.append(distribution.logits.numpy().astype(np.float64))
    return np.concatenate(parts) if parts else np.zeros((0, policy.action_net.out_features))


@torch.no_grad()
def values(policy: ActorCriticPolicy, observations: Observations) -> Floats:
    """What the critic expects, [n]."""
    parts = [policy.predict_values(torch.from_numpy(part)).numpy()[:, 0] for part in _batches(observations)]
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)


def _batches(observations: Observations) -> list[Observations]:
    return [observations[start : start + _BATCH_ROWS] for start in range(0, len(observations), _BATCH_ROWS)]
