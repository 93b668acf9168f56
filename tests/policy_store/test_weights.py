from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from policy_store import InvalidWeights, ManifestDraft
from policy_store.weights import actor_shapes, check_weights, critic_shapes, decode_weights, encode_weights

Weights = dict[str, Any]
WeightsFor = Callable[[ManifestDraft], Weights]


def test_names_and_shapes_are_those_of_the_sb3_policy(resps_draft: ManifestDraft) -> None:
    assert actor_shapes(resps_draft) == {
        "mlp_extractor.policy_net.0.weight": (3, 4),
        "mlp_extractor.policy_net.0.bias": (3,),
        "mlp_extractor.policy_net.2.weight": (5, 3),
        "mlp_extractor.policy_net.2.bias": (5,),
        "action_net.weight": (2, 5),
        "action_net.bias": (2,),
    }
    assert critic_shapes(resps_draft)["mlp_extractor.value_net.2.weight"] == (5, 3)
    assert critic_shapes(resps_draft)["value_net.weight"] == (1, 5)


def test_bytes_round_trip_exactly_even_from_a_transposed_array(
    resps_draft: ManifestDraft, weights_for: WeightsFor
) -> None:
    weights = weights_for(resps_draft)
    turned = {name: np.asfortranarray(tensor) for name, tensor in weights.items()}
    loaded = decode_weights(encode_weights(turned))
    assert loaded.keys() == weights.keys()
    for name, tensor in weights.items():
        assert np.array_equal(loaded[name], tensor)


def test_loaded_weights_cannot_be_changed(resps_draft: ManifestDraft, weights_for: WeightsFor) -> None:
    loaded = decode_weights(encode_weights(weights_for(resps_draft)))
    with pytest.raises(ValueError, match="read-only"):
        loaded["action_net.bias"][0] = 1.0


def test_the_critic_is_kept_whole_or_not_at_all(resps_draft: ManifestDraft, weights_for: WeightsFor) -> None:
    weights = weights_for(resps_draft)
    critic = {name: np.zeros(shape, np.float32) for name, shape in critic_shapes(resps_draft).items()}
    check_weights(resps_draft, weights | critic)
    del critic["value_net.bias"]
    with pytest.raises(InvalidWeights) as refused:
        check_weights(resps_draft, weights | critic)
    assert refused.value.tensor == "value_net.bias"


@pytest.mark.parametrize(
    ("tensor", "value", "fault"),
    [
        ("action_net.bias", None, "missing"),
        ("action_net.bias", np.zeros(3, np.float32), "shape"),
        ("action_net.bias", np.zeros((2, 1), np.float32), "shape"),
        ("action_net.bias", np.zeros(2, np.float64), "float64"),
        ("action_net.bias", np.array([0, np.nan], np.float32), "finite"),
        ("action_net.weight", np.full((2, 5), -np.inf, np.float32), "finite"),
        ("log_std", np.zeros(2, np.float32), "architecture"),
    ],
)
def test_wrong_weights_are_refused_by_tensor(
    resps_draft: ManifestDraft, weights_for: WeightsFor, tensor: str, value: Any, fault: str
) -> None:
    weights = weights_for(resps_draft)
    weights[tensor] = value
    if value is None:
        del weights[tensor]
    with pytest.raises(InvalidWeights, match=fault) as refused:
        check_weights(resps_draft, weights)
    assert refused.value.tensor == tensor


def test_a_static_version_has_no_weights(static_draft: ManifestDraft) -> None:
    check_weights(static_draft, {})
    with pytest.raises(InvalidWeights):
        check_weights(static_draft, {"action_net.bias": np.zeros(1, np.float32)})


def test_what_is_no_safetensors_file_is_refused(resps_draft: ManifestDraft, weights_for: WeightsFor) -> None:
    data = encode_weights(weights_for(resps_draft))
    header = json.dumps({"x": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    for broken in (b"", data[:-1], b"\x80\x04K\x01.", struct.pack("<Q", len(header)) + header + b"\0\0"):
        with pytest.raises(InvalidWeights):
            decode_weights(broken)
