"""The drafter's rotary embedding: both config places, transformers' scalings, any position (bug reports 15 and 16)."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from respsd.engine.rope import RopeConfig, RotaryEmbedding, inverse_frequencies, read_rope_config
from respsd.errors import CheckpointError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN_DETAILED = YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5, "truncate": False}


def read(config: dict[str, object], head_dim: int = 16) -> RopeConfig:
    return read_rope_config(config, head_dim, "config.json")


def test_frequencies_by_hand():
    frequencies, factor = inverse_frequencies(RopeConfig(head_dim=4, theta=100.0))
    assert frequencies.tolist() == pytest.approx([1.0, 0.1])
    assert factor == 1.0
    cos, sin = RotaryEmbedding(RopeConfig(head_dim=4, theta=100.0), "cpu").cos_sin(torch.tensor([0, 3]), torch.float32)
    angles = [[0.0] * 4, [3.0, 0.3, 3.0, 0.3]]
    assert cos.tolist() == [pytest.approx([math.cos(a) for a in row]) for row in angles]
    assert sin.tolist() == [pytest.approx([math.sin(a) for a in row]) for row in angles]


@pytest.mark.parametrize("scaling", [None, LINEAR, LLAMA3, YARN, YARN_DETAILED])
def test_cos_and_sin_equal_transformers_llama(scaling):
    parameters = dict(scaling or {"rope_type": "default"}) | {"rope_theta": 5e5}
    llama = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=32,
            num_attention_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            rope_parameters=dict(parameters),
        )
    )
    positions = torch.tensor([0, 1, 7, 63, 64, 200, 255])
    expected = llama(torch.zeros(1), positions[None])
    config = read({"max_position_embeddings": 256, "rope_parameters": parameters})
    ours = RotaryEmbedding(config, "cpu").cos_sin(positions, torch.float32)
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.shape == (7, 16)
        torch.testing.assert_close(mine, theirs[0], rtol=0, atol=0)


@pytest.mark.parametrize("scaling", [None, LINEAR, LLAMA3, YARN])
def test_legacy_and_new_config_places_give_the_same_frequencies(scaling):
    old = {"rope_theta": 5e5, "rope_scaling": scaling, "max_position_embeddings": 256}
    legacy_name = None if scaling is None else {"type" if k == "rope_type" else k: v for k, v in scaling.items()}
    oldest = old | {"rope_scaling": legacy_name}
    new = {
        "rope_parameters": {"rope_theta": 5e5, **(scaling or {"rope_type": "default"})},
        "max_position_embeddings": 256,
    }
    nested = new | {"rope_parameters": {"full_attention": new["rope_parameters"]}}
    assert read(old) == read(oldest) == read(new) == read(nested)
    assert read(new).theta == 5e5


def test_layer_type_selects_among_nested_parameters():
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert read({"rope_parameters": nested}).theta == 1e6
    assert read({"rope_parameters": nested, "layer_types": ["sliding_attention"]}).theta == 1e4
    with pytest.raises(CheckpointError, match="chunked"):
        read({"rope_parameters": nested, "layer_types": ["chunked"]})


def test_original_length_beside_the_scaling_is_read():
    beside = {name: value for name, value in LLAMA3.items() if name != "original_max_position_embeddings"}
    assert read({"rope_scaling": beside, "original_max_position_embeddings": 64}) == read({"rope_scaling": LLAMA3})


def test_theta_defaults_to_llamas():
    assert read({}).theta == 10_000.0
    assert read({}).rope_type == "default"


def test_positions_beyond_the_drafters_own_length_are_evaluated():
    """Row 15: the public Llama head says 2048; the target goes on."""
    short = RotaryEmbedding(read({"max_position_embeddings": 2048}), "cpu")
    long = RotaryEmbedding(read({"max_position_embeddings": 131072}), "cpu")
    positions = torch.tensor([2047, 2048, 100_000])
    for mine, theirs in zip(
        short.cos_sin(positions, torch.float32), long.cos_sin(positions, torch.float32), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_scores_depend_on_distance_only():
    rotary = RotaryEmbedding(RopeConfig(head_dim=16), "cpu")
    query, key = torch.randn(2, 16, generator=torch.Generator().manual_seed(3))

    def score(query_at: int, key_at: int) -> float:
        cos, sin = rotary.cos_sin(torch.tensor([query_at, key_at]), torch.float32)
        rotated = [x * c + rotate_half(x) * s for x, c, s in zip((query, key), cos, sin, strict=True)]
        return float(rotated[0] @ rotated[1])

    assert score(5, 2) == pytest.approx(score(105, 102), abs=1e-4)


def test_result_has_the_asked_dtype():
    cos, sin = RotaryEmbedding(RopeConfig(head_dim=8), "cpu").cos_sin(torch.tensor([9]), torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "'su' is unknown"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "'proportional' is unknown"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "is unknown"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "depends on the sequence's length"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "depends on the sequence's length"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' lacks factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks high_freq_factor, low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor below"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 10000.0, but 500000.0"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": LINEAR}, "contradict"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ],
)
def test_refusals_name_the_file_and_the_fault(config, fault):
    with pytest.raises(CheckpointError, match=fault) as caught:
        read(config)
    assert caught.value.file == "config.json"


def test_odd_head_is_refused():
    with pytest.raises(CheckpointError, match="head_dim 15 is odd"):
        read({}, head_dim=15)
