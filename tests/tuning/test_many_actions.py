"""Updates of a policy with a thousand actions stay finite, and a table of one action is a table.

(Stable-Baselines-Team/stable-baselines3-contrib#247: probabilities that are checked to sum to one fail with many
actions, and masked ones with a single legal one. Here a table holds legal actions only, so nothing is masked.)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from respsd.control.network import random_policy_weights
from respsd.settings_learning import LearningSettings
from respsd.tuning.ppo_update import train
from respsd.tuning.sb3_policy import log_probs, make_ppo
from respsd.tuning.windows import Windows

WIDTH, WINDOWS, UPDATES = 16, 64, 100
SETTINGS = LearningSettings(epochs=1, batch_size=64, request_effect=False)


@pytest.mark.parametrize("actions", [1, 1000])
def test_a_hundred_updates_stay_finite_and_sum_to_one(actions: int) -> None:
    rng = np.random.default_rng(5)
    ppo = make_ppo(random_policy_weights(WIDTH, actions, rng, (32, 32)), SETTINGS, seed=0)
    best = actions - 1
    for _ in range(UPDATES):
        observations = rng.standard_normal((WINDOWS, WIDTH)).astype(np.float32)
        known = log_probs(ppo.policy, observations)
        drawn = np.array([rng.choice(actions, p=np.exp(each) / np.exp(each).sum()) for each in known])
        drawn[::4] = best  # so that the best of a thousand is met at all
        windows = logged(drawn, known[np.arange(WINDOWS), drawn])
        figures = train(ppo, windows, observations, (drawn == best).astype(np.float64), SETTINGS)
        assert figures.finite
    final = log_probs(ppo.policy, observations)
    assert np.isfinite(final).all()
    assert np.exp(final).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert (final.argmax(axis=1) == best).mean() > 0.5  # and it learns all the same


def logged(action: np.ndarray, log_prob: np.ndarray) -> Windows:
    """Windows of requests of eight, as the update reads them."""
    fields = SimpleNamespace(
        action=action,
        log_prob=log_prob,
        steps=np.full(WINDOWS, 10),
        lane=np.repeat(np.arange(WINDOWS // 8), 8),
        starts=(np.arange(WINDOWS) % 8 == 0).astype(np.float32),
    )
    return cast("Windows", _Sized(**vars(fields)))


class _Sized(SimpleNamespace):
    def __len__(self) -> int:
        return WINDOWS
