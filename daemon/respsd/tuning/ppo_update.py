"""One PPO update on logged windows: Stable-Baselines3's own `PPO.train()` on a rollout buffer filled from the log.

A window is one experience and a request one episode: an episode's end is a real end, since a request's speed has no
sequel. Old log-probabilities are those from the log, so that the clip holds against the policy that really chose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer

from respsd.settings_learning import LearningSettings
from respsd.tuning.request_effect import others_effect
from respsd.tuning.sb3_policy import Observations, values
from respsd.tuning.windows import Floats, Windows


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """What `PPO.train()` reports, averages over its minibatches."""

    kl: float
    clip_share: float
    entropy: float
    explained_variance: float
    value_loss: float
    policy_loss: float
    loss: float

    @property
    def finite(self) -> bool:
        """Whether every loss is a number. (Explained variance is not one where all returns are equal.)"""
        return all(map(math.isfinite, (self.kl, self.entropy, self.value_loss, self.policy_loss, self.loss)))


def train(
    ppo: PPO, windows: Windows, observations: Observations, rewards: Floats, settings: LearningSettings
) -> TrainingFigures:
    """Train `ppo` on windows [n], with their normalised observations [n, width] and rewards [n]."""
    expected = values(ppo.policy, observations)
    # A window cut short after a few steps says less about its action: its temporal difference counts in proportion.
    weight = windows.steps / windows.steps.max()
    if settings.request_effect:
        rewards = rewards - others_effect(rewards - expected, windows.lane, weight)
    rewards = expected + weight * (rewards - expected)

    buffer = RolloutBuffer(
        len(windows),
        ppo.observation_space,
        ppo.action_space,
        device="cpu",
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
    )
    starts = windows.starts
    for t in range(len(windows)):
        buffer.add(
            observations[t],
            windows.action[t : t + 1],
            rewards[t : t + 1],
            starts[t : t + 1],
            torch.tensor([expected[t]], dtype=torch.float32),
            torch.tensor([windows.log_prob[t]], dtype=torch.float32),
        )
    buffer.compute_returns_and_advantage(last_values=torch.zeros(1), dones=np.ones(1))
    ppo.rollout_buffer = buffer
    ppo.train()
    return _figures(ppo)


def _figures(ppo: PPO) -> TrainingFigures:
    logged = {name: float(value) for name, value in ppo.logger.name_to_value.items()}
    return TrainingFigures(
        kl=logged["train/approx_kl"],
        clip_share=logged["train/clip_fraction"],
        entropy=-logged["train/entropy_loss"],
        explained_variance=logged["train/explained_variance"],
        value_loss=logged["train/value_loss"],
        policy_loss=logged["train/policy_gradient_loss"],
        loss=logged["train/loss"],
    )
