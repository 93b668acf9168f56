from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from policy_store import Normaliser
from respsd.control.network import PolicyNetwork, log_softmax, random_policy_weights

WIDTH, ACTIONS = 10, 7


def sb3_policy() -> ActorCriticPolicy:
    torch.manual_seed(0)
    return ActorCriticPolicy(
        gymnasium.spaces.Box(-np.inf, np.inf, (WIDTH,)),
        gymnasium.spaces.Discrete(ACTIONS),
        lambda _: 3e-4,
        net_arch=[128, 128],
    )


def test_logits_are_those_of_sb3_on_the_same_weights() -> None:
    policy = sb3_policy()
    with torch.no_grad():
        policy.action_net.weight.normal_()  # SB3's own start is so small that a wrong head would hardly show
        policy.action_net.bias.normal_()
    network = PolicyNetwork({name: tensor.numpy() for name, tensor in policy.state_dict().items()}, None)
    observations = np.random.default_rng(1).standard_normal((20, WIDTH)).astype(np.float32)
    with torch.no_grad():
        expected = policy.get_distribution(torch.from_numpy(observations)).distribution.logits.numpy()
    found = np.stack([log_softmax(network.logits(observation)) for observation in observations])
    # SB3 keeps normalised logits; float32 on both sides, of size 10 to 30
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def test_the_normaliser_acts_before_the_first_layer() -> None:
    weights = random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(0))
    mean, std = np.linspace(-1, 1, WIDTH), np.linspace(0.5, 2, WIDTH)
    observation = np.random.default_rng(2).standard_normal(WIDTH).astype(np.float32)
    normalised = PolicyNetwork(weights, Normaliser(tuple(mean), tuple(std))).logits(observation)
    plain = PolicyNetwork(weights, None).logits(((observation - mean) / std).astype(np.float32))
    assert normalised == pytest.approx(plain, abs=1e-7)


def test_layers_are_applied_in_order_whatever_the_order_of_the_tensors() -> None:
    weights = random_policy_weights(
        WIDTH, ACTIONS, np.random.default_rng(0), (4,) * 7
    )  # a tenth layer sorts after the second
    observation = np.ones(WIDTH, np.float32)
    turned = dict(reversed(weights.items()))
    assert np.array_equal(
        PolicyNetwork(turned, None).logits(observation), PolicyNetwork(weights, None).logits(observation)
    )
    x = observation
    for layer in range(7):
        name = f"mlp_extractor.policy_net.{2 * layer}"
        x = np.tanh(weights[f"{name}.weight"] @ x + weights[f"{name}.bias"])
    expected = weights["action_net.weight"] @ x + weights["action_net.bias"]
    assert PolicyNetwork(weights, None).logits(observation) == pytest.approx(expected, abs=1e-7)


def test_log_softmax_of_a_known_case() -> None:
    assert log_softmax(np.log([1.0, 2.0, 5.0])) == pytest.approx(np.log([1 / 8, 2 / 8, 5 / 8]))


@pytest.mark.parametrize("shift", [-1e6, 0, 1e6])
def test_log_softmax_is_stable(shift: float) -> None:
    log_probs = log_softmax(np.array([0.0, -1000.0, 3.0]) + shift)
    assert np.exp(log_probs).sum() == pytest.approx(1)
    assert log_probs[1] == pytest.approx(-1003.0486, abs=1e-3)


def test_random_weights_are_a_policy_that_sb3_could_have_drawn() -> None:
    weights = random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(0))
    fresh = sb3_policy().state_dict()
    assert {name: tensor.shape for name, tensor in weights.items()} == {
        name: tuple(tensor.shape) for name, tensor in fresh.items()
    }
    for name, tensor in weights.items():
        assert tensor.dtype == np.float32
        if name.endswith("bias"):
            assert not tensor.any()
            continue
        # orthogonal: all singular values are the gain, and the same as SB3's
        singular = np.linalg.svd(tensor, compute_uv=False)
        assert singular == pytest.approx(np.linalg.svd(fresh[name].numpy(), compute_uv=False), rel=1e-4)


def test_random_weights_follow_the_generator() -> None:
    first, again, other = (random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first["action_net.weight"], again["action_net.weight"])
    assert not np.array_equal(first["action_net.weight"], other["action_net.weight"])


def test_a_fresh_policy_is_nearly_uniform() -> None:
    network = PolicyNetwork(random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(0)), None)
    probabilities = np.exp(log_softmax(network.logits(np.full(WIDTH, 3, np.float32))))
    assert probabilities == pytest.approx(np.full(ACTIONS, 1 / ACTIONS), rel=0.05)
