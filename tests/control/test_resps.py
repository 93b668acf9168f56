from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_store import Golden, StoredPolicy
from respsd.control.action import Action, ActionTable
from respsd.control.network import log_softmax
from respsd.control.observation import ObservationSchema
from respsd.control.resps import RespsController, sample
from respsd.errors import PolicyRefused

MakePolicy = Callable[..., StoredPolicy]
RESERVED = Action(32, 5, 8)


def seen(schema: ObservationSchema) -> np.ndarray:
    return np.zeros(schema.width, np.float32)


def test_the_most_probable_action_is_chosen_with_certainty(
    make_policy: MakePolicy, schema: ObservationSchema, table: ActionTable
) -> None:
    controller = RespsController(make_policy(0.0, 1.0, 3.0, 2.0), "champion", schema, RESERVED)
    for uniform in (0.0, 0.5, 0.999):
        decision = controller.choose(seen(schema), uniform)
        assert (decision.action, decision.action_index, decision.log_prob) == (table[2], 2, 0.0)
    assert (decision.arm, decision.policy_version) == ("champion", 5)
    assert decision.table_fingerprint == table.fingerprint
    assert controller.version == 5


def test_sampling_inverts_the_cumulative_distribution_and_says_its_exact_probability(
    make_policy: MakePolicy, schema: ObservationSchema
) -> None:
    policy = make_policy(*np.log([1, 2, 4, 1]))  # probabilities 1/8, 2/8, 4/8, 1/8
    controller = RespsController(policy, "learner", schema, RESERVED, temperature=1.0)
    for uniform, index, probability in (
        (0.0, 0, 1 / 8),
        (0.12, 0, 1 / 8),
        (0.13, 1, 2 / 8),
        (0.374, 1, 2 / 8),
        (0.376, 2, 4 / 8),
        (0.876, 3, 1 / 8),
        (math.nextafter(1, 0), 3, 1 / 8),
    ):
        decision = controller.choose(seen(schema), uniform)
        assert decision.action_index == index
        assert decision.log_prob == pytest.approx(math.log(probability), abs=1e-6)


def test_temperature_flattens_the_distribution_that_is_reported(
    make_policy: MakePolicy, schema: ObservationSchema
) -> None:
    policy = make_policy(*np.log([1, 4, 9, 16]))
    controller = RespsController(policy, "champion", schema, RESERVED, temperature=2.0)  # proportional to 1, 2, 3, 4
    decision = controller.choose(seen(schema), 0.95)
    assert (decision.action_index, decision.log_prob) == (3, pytest.approx(math.log(0.4), abs=1e-6))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_is_positive(make_policy: MakePolicy, schema: ObservationSchema, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        RespsController(make_policy(), "champion", schema, RESERVED, temperature=temperature)


def test_another_observation_schema_is_refused(make_policy: MakePolicy, schema: ObservationSchema) -> None:
    with pytest.raises(PolicyRefused, match="observations") as refused:
        RespsController(make_policy(), "champion", replace(schema, projection_seed=1), RESERVED)
    assert refused.value.version == 5


@pytest.mark.parametrize("reserved", [Action(31, 5, 8), Action(32, 4, 8), Action(32, 5, 7)])
def test_an_action_that_the_engine_cannot_run_is_refused(
    make_policy: MakePolicy, schema: ObservationSchema, reserved: Action
) -> None:
    with pytest.raises(PolicyRefused, match="32,5,8"):
        RespsController(make_policy(), "champion", schema, reserved)


def test_weights_that_miss_the_golden_logits_are_refused(make_policy: MakePolicy, schema: ObservationSchema) -> None:
    golden = make_policy().manifest.golden
    assert golden is not None
    off = Golden(golden.observation, (*golden.logits[:-1], golden.logits[-1] + 0.01))
    with pytest.raises(PolicyRefused, match="golden"):
        RespsController(make_policy(golden=off), "champion", schema, RESERVED)
    near = Golden(golden.observation, (*golden.logits[:-1], golden.logits[-1] + 1e-6))
    RespsController(make_policy(golden=near), "champion", schema, RESERVED)


def test_output_that_is_not_finite_is_a_fault_not_a_choice(make_policy: MakePolicy, schema: ObservationSchema) -> None:
    controller = RespsController(make_policy(), "champion", schema, RESERVED)
    observation = seen(schema)
    observation[0] = np.nan
    with pytest.raises(PolicyRefused, match="finite"):
        controller.choose(observation, 0.5)


def test_an_observation_of_another_width_is_a_fault(make_policy: MakePolicy, schema: ObservationSchema) -> None:
    controller = RespsController(make_policy(), "champion", schema, RESERVED)
    with pytest.raises(PolicyRefused, match="shape"):
        controller.choose(np.zeros(schema.width + 1, np.float32), 0.5)


logits = st.lists(st.floats(-800, 800), min_size=1, max_size=30).map(np.array)


@given(logits, st.floats(0, 1, exclude_max=True))
def test_a_drawn_action_is_never_one_of_probability_zero(values: np.ndarray, uniform: float) -> None:
    log_probs = log_softmax(values)
    index, log_prob = sample(log_probs, uniform)
    assert math.exp(log_prob) > 0
    assert log_prob == log_probs[index]


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.0, 0.2, 0.3])
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities)
    uniforms = (np.arange(10_000) + 0.5) / 10_000
    counts = np.bincount([sample(log_probs, uniform)[0] for uniform in uniforms], minlength=4)
    assert counts.tolist() == [5000, 0, 2000, 3000]
