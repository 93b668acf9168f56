"""What config.json may and may not say about a drafter."""

from __future__ import annotations

import logging

import pytest
from support import drafters

from respsd.engine.drafter_config import read_drafter_config
from respsd.errors import CheckpointError


def without(*names: str) -> dict[str, object]:
    return {name: value for name, value in drafters.CONFIG.items() if name not in names}


def read(tmp_path, config):
    return read_drafter_config(drafters.write(tmp_path, config, {}) / "config.json")


def test_llama_defaults_fill_what_a_config_leaves_out(tmp_path):
    config = read(tmp_path, without("num_key_value_heads", "hidden_act", "draft_vocab_size", "model_type"))
    assert config.kv_heads == config.heads == 4
    assert config.draft_vocab_size == config.vocab_size == drafters.VOCAB
    assert config.target_hidden_size == config.hidden_size
    assert config.hidden_act == "silu"


def test_explicit_head_width_wins(tmp_path):
    assert read(tmp_path, {**drafters.CONFIG, "head_dim": 8}).head_dim == 8


def test_rope_is_read_from_the_nested_layer(tmp_path):
    nested = drafters.speculators_config()
    layer = dict(nested["transformer_layer_config"])
    del layer["rope_theta"]
    layer["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
    config = read(tmp_path, {**nested, "transformer_layer_config": layer})
    assert config.rope.theta == 5e5
    assert config.rope.head_dim == 4


def test_speculators_without_norm_before_residual_says_what_it_takes(tmp_path, caplog):
    nested = drafters.speculators_config()
    del nested["norm_before_residual"]
    with caplog.at_level(logging.WARNING):
        assert not read(tmp_path, nested).norm_before_residual
    assert "norm_before_residual" in caplog.text


@pytest.mark.parametrize(
    "name", ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "rms_norm_eps"]
)
def test_missing_size_is_named(tmp_path, name):
    with pytest.raises(CheckpointError, match=f"{name} is None"):
        read(tmp_path, without(name))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"model_type": "gemma3_text"}, "model_type 'gemma3_text'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"hidden_size": "16"}, "hidden_size is '16'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"norm_output": "yes"}, "norm_output is 'yes'"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"use_sliding_window": True, "sliding_window": 512}, "sliding-window"),
        ({"speculators_model_type": "dflash"}, "'dflash' is not 'eagle3'"),
        ({"transformer_layer_config": []}, "transformer_layer_config is"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5]}, "names 2 layers; expected 3"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5, "x"]}, "expected layer numbers"),
        ({"eagle_aux_hidden_state_layer_ids": "2,5,7"}, "expected layer numbers"),
        ({"rope_scaling": {"type": "unheard-of"}}, "'unheard-of' is unknown"),
    ],
)
def test_refusals_name_field_and_value(tmp_path, change, fault):
    with pytest.raises(CheckpointError, match=fault) as caught:
        read(tmp_path, {**drafters.CONFIG, **change})
    assert caught.value.file.endswith("config.json")


def test_unused_sliding_window_settings_are_fine(tmp_path):
    read(tmp_path, {**drafters.CONFIG, "use_sliding_window": False, "sliding_window": 4096})


@pytest.mark.parametrize(("content", "fault"), [("{", "not readable JSON"), ("[]", "not a JSON object")])
def test_malformed_file_is_refused(tmp_path, content, fault):
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(CheckpointError, match=fault):
        read_drafter_config(file)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is missing"):
        read_drafter_config(tmp_path / "config.json")
