"""The policy that serves and the one that Stable-Baselines3 trains are the same function, to 1e-6."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from respsd.control.network import PolicyNetwork, log_softmax, random_policy_weights
from respsd.settings_learning import LearningSettings
from respsd.tuning.sb3_policy import log_probs, make_ppo, policy_weights, values, with_critic
from respsd.tuning.statistics import Statistics, express

WIDTH, ACTIONS = 95, 177
RNG = np.random.default_rng(3)


def trained_weights(scale: float = 30.0) -> dict[str, np.ndarray]:
    """Weights whose policy is as decided as a trained one: SB3's own start is nearly uniform."""
    weights = random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(0))
    weights["action_net.weight"] = (weights["action_net.weight"] * scale).astype(np.float32)
    weights["action_net.bias"] = RNG.standard_normal(ACTIONS).astype(np.float32)
    return weights


STATISTICS = Statistics(500, RNG.standard_normal(WIDTH), RNG.uniform(0.1, 2, WIDTH))
OBSERVATIONS = RNG.standard_normal((200, WIDTH)).astype(np.float32)


def test_log_probabilities_are_those_of_evaluate_actions() -> None:
    weights = trained_weights()
    policy = make_ppo(weights, LearningSettings(), seed=0).policy
    actions = RNG.integers(0, ACTIONS, len(OBSERVATIONS))
    seen = torch.from_numpy(STATISTICS.normalise(OBSERVATIONS))
    with torch.no_grad():
        _, expected, entropy = policy.evaluate_actions(seen, torch.from_numpy(actions))
    network = PolicyNetwork(weights, STATISTICS.normaliser())
    found = np.stack([log_softmax(network.logits(observation)) for observation in OBSERVATIONS])
    assert found[np.arange(200), actions] == pytest.approx(expected.numpy(), abs=1e-6, rel=1e-6)
    assert -(np.exp(found) * found).sum(axis=1) == pytest.approx(entropy.numpy(), abs=2e-6)
    assert log_probs(policy, STATISTICS.normalise(OBSERVATIONS)) == pytest.approx(found, abs=1e-6, rel=1e-6)


def test_the_most_probable_action_is_that_of_predict() -> None:
    weights = trained_weights()
    ppo = make_ppo(weights, LearningSettings(), seed=0)
    expected, _ = ppo.predict(STATISTICS.normalise(OBSERVATIONS), deterministic=True)
    network = PolicyNetwork(weights, STATISTICS.normaliser())
    assert [int(network.logits(observation).argmax()) for observation in OBSERVATIONS] == expected.tolist()


@pytest.mark.parametrize("hidden", [(128, 128), (64, 32, 16), (8,)])
def test_weights_go_in_and_out_bit_for_bit(hidden: tuple[int, ...]) -> None:
    weights = random_policy_weights(WIDTH, ACTIONS, np.random.default_rng(1), hidden)
    returned = policy_weights(make_ppo(weights, LearningSettings(), seed=0).policy)
    assert returned.keys() == weights.keys()
    for name, tensor in weights.items():
        assert np.array_equal(returned[name], tensor)


def test_a_version_without_a_critic_gets_a_fresh_one_of_its_shape() -> None:
    weights = random_policy_weights(WIDTH, 5, np.random.default_rng(1), (64, 32, 16))
    actor = {name: tensor for name, tensor in weights.items() if "value_net" not in name}
    completed = with_critic(actor, np.random.default_rng(2))
    assert {name: tensor.shape for name, tensor in completed.items()} == {n: t.shape for n, t in weights.items()}
    assert all(completed[name] is tensor for name, tensor in actor.items())


def test_nothing_to_evaluate_gives_nothing() -> None:
    policy = make_ppo(trained_weights(), LearningSettings(), seed=0).policy
    assert values(policy, OBSERVATIONS[:0]).shape == (0,)
    assert log_probs(policy, OBSERVATIONS[:0]).shape == (0, ACTIONS)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_new_statistics_leave_the_function_as_it_was(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = trained_weights()
    new = STATISTICS.refined((rng.standard_normal((300, WIDTH)) * rng.uniform(0, 3, WIDTH)).astype(np.float32))
    moved = express(weights, STATISTICS, new)
    before = PolicyNetwork(weights, STATISTICS.normaliser())
    after = PolicyNetwork(moved, new.normaliser())
    for observation in OBSERVATIONS[:20]:
        assert after.logits(observation) == pytest.approx(before.logits(observation), abs=2e-4)
    old_values = values(make_ppo(weights, LearningSettings(), seed=0).policy, STATISTICS.normalise(OBSERVATIONS))
    new_values = values(make_ppo(moved, LearningSettings(), seed=0).policy, new.normalise(OBSERVATIONS))
    assert new_values == pytest.approx(old_values, abs=2e-4)


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    rows = (RNG.standard_normal((400, 3)) * [0.5, 1, 3] + [1, 0, -2]).astype(np.float32)
    start = Statistics.of_version(None, 0, 3)
    parts = start.refined(rows[:150]).refined(rows[150:])
    assert parts.count == 400
    assert parts.mean == pytest.approx(rows.mean(axis=0), abs=1e-5)
    assert parts.std == pytest.approx(rows.std(axis=0), rel=1e-4)


def test_a_number_that_never_varied_does_not_blow_up() -> None:
    constant = Statistics.of_version(None, 0, 1).refined(np.full((50, 1), 0.7, np.float32))
    assert constant.normalise(np.array([[0.7], [1.7]], np.float32))[:, 0] == pytest.approx([0, 10], abs=1e-5)
