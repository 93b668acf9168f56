"""Drafter checkpoints load as published, under one set of names, or are refused (bug reports 17 and 18)."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import save_file
from support import drafters

from respsd.engine.checkpoint import expected_shapes, load_drafter_checkpoint
from respsd.errors import CheckpointError


def test_safeailab_form_loads_under_canonical_names(tmp_path):
    loaded = drafters.load(drafters.write(tmp_path))
    published = drafters.tensors()
    assert loaded.tensors.keys() == expected_shapes(loaded.config).keys()
    assert torch.equal(loaded.tensors["layer.mlp.up_proj.weight"], published["midlayer.mlp.up_proj.weight"])
    assert loaded.draft_to_target.tolist() == drafters.TARGET_IDS
    assert "embed_tokens.weight" not in loaded.tensors
    assert (loaded.config.head_dim, loaded.config.kv_heads, loaded.config.draft_vocab_size) == (4, 2, 10)
    assert not loaded.config.norm_before_residual


def test_speculators_form_gives_the_same_drafter(tmp_path):
    ours = drafters.load(drafters.write(tmp_path / "safeailab"))
    theirs = drafters.load(
        drafters.write(tmp_path / "speculators", drafters.speculators_config(), drafters.tensors("layers.0"))
    )
    assert theirs.config == ours.config
    assert theirs.tensors.keys() == ours.tensors.keys()
    assert all(torch.equal(theirs.tensors[name], tensor) for name, tensor in ours.tensors.items())
    assert torch.equal(theirs.draft_to_target, ours.draft_to_target)


def test_norm_switches_are_read_and_their_tensors_required(tmp_path):
    norms = {
        "input_norm.weight": torch.ones(3 * drafters.HIDDEN),
        "fc_norm.0.weight": torch.ones(drafters.HIDDEN),
        "fc_norm.1.weight": torch.ones(drafters.HIDDEN),
        "fc_norm.2.weight": torch.ones(drafters.HIDDEN),
    }
    config = drafters.speculators_config(norm_before_residual=True, norm_before_fc=True, fc_norm=True, norm_output=True)
    weights = drafters.tensors("layers.0")
    loaded = drafters.load(drafters.write(tmp_path / "whole", config, weights | norms))
    assert loaded.config.norm_before_residual
    assert loaded.config.norm_before_fc
    assert loaded.config.fc_norm
    assert loaded.config.norm_output
    assert norms.keys() <= loaded.tensors.keys()
    with pytest.raises(CheckpointError, match=r"lacks fc_norm\.0\.weight, .*, input_norm\.weight"):
        drafters.load(drafters.write(tmp_path / "without", config, weights))


def test_norm_that_the_config_does_not_ask_for_is_not_ignored(tmp_path):
    weights = drafters.tensors() | {"input_norm.weight": torch.ones(3 * drafters.HIDDEN)}
    with pytest.raises(CheckpointError, match=r"does not account for: input_norm\.weight"):
        drafters.load(drafters.write(tmp_path, weights=weights))


def test_switches_below_eagle_config_are_read(tmp_path):
    config = {
        **drafters.CONFIG,
        "eagle_config": {"norm_before_fc": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]},
    }
    weights = drafters.tensors() | {"input_norm.weight": torch.ones(3 * drafters.HIDDEN)}
    loaded = drafters.load(drafters.write(tmp_path, config, weights))
    assert loaded.config.norm_before_fc
    assert loaded.config.aux_layer_ids == (2, 4, 5)


def test_attention_biases_are_loaded(tmp_path):
    sizes = {"q": 16, "k": 8, "v": 8, "o": drafters.HIDDEN}
    biases = {f"midlayer.self_attn.{name}_proj.bias": torch.ones(size) for name, size in sizes.items()}
    config = {**drafters.CONFIG, "attention_bias": True}
    loaded = drafters.load(drafters.write(tmp_path / "with", config, drafters.tensors() | biases))
    assert loaded.tensors["layer.self_attn.k_proj.bias"].shape == (8,)
    with pytest.raises(CheckpointError, match=r"lacks layer\.self_attn\.k_proj\.bias"):
        drafters.load(drafters.write(tmp_path / "without", config))


def test_training_leftovers_are_ignored(tmp_path):
    extra = {
        "verifier_norm.weight": torch.ones(drafters.HIDDEN),
        "verifier_lm_head.weight": torch.ones(drafters.DRAFT_VOCAB, drafters.HIDDEN),
        "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    loaded = drafters.load(drafters.write(tmp_path, weights=drafters.tensors() | extra))
    assert loaded.tensors.keys() == expected_shapes(loaded.config).keys()


def test_own_embedding_is_kept(tmp_path):
    embedding = torch.randn(drafters.VOCAB, drafters.HIDDEN)
    loaded = drafters.load(drafters.write(tmp_path, weights=drafters.tensors() | {"embed_tokens.weight": embedding}))
    assert torch.equal(loaded.tensors["embed_tokens.weight"], embedding)


def test_narrower_drafter_needs_its_own_embedding(tmp_path):
    config = {**drafters.CONFIG, "target_hidden_size": 24}
    weights = drafters.tensors() | {"fc.weight": torch.randn(drafters.HIDDEN, 72)}
    with pytest.raises(CheckpointError, match=r"lacks embed_tokens\.weight.*24 wide"):
        drafters.load(drafters.write(tmp_path / "without", config, weights), hidden=24)
    weights["embed_tokens.weight"] = torch.randn(drafters.VOCAB, drafters.HIDDEN)
    loaded = drafters.load(drafters.write(tmp_path / "with", config, weights), hidden=24)
    assert loaded.tensors["fc.weight"].shape == (drafters.HIDDEN, 72)


@pytest.mark.parametrize(("width", "said"), [(32, "2 hidden states"), (64, "4 hidden states"), (40, "2.5 hidden")])
def test_number_of_hidden_states_is_taken_from_fc(tmp_path, width, said):
    weights = drafters.tensors() | {"fc.weight": torch.randn(drafters.HIDDEN, width)}
    with pytest.raises(CheckpointError, match=f"{said}.*expected 3"):
        drafters.load(drafters.write(tmp_path, weights=weights))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("midlayer.self_attn.q_proj.weight", (16, drafters.HIDDEN)),
        ("midlayer.hidden_norm.weight", (drafters.HIDDEN, 1)),
        ("lm_head.weight", (drafters.VOCAB, drafters.HIDDEN)),
        ("embed_tokens.weight", (drafters.DRAFT_VOCAB, drafters.HIDDEN)),
    ],
)
def test_wrong_shape_is_named(tmp_path, name, shape):
    with pytest.raises(CheckpointError, match=rf"{name.replace('midlayer', 'layer')} has shape .*its config says"):
        drafters.load(drafters.write(tmp_path, weights=drafters.tensors() | {name: torch.zeros(shape)}))


def test_missing_and_unknown_tensors_are_named(tmp_path):
    weights = drafters.tensors()
    del weights["midlayer.mlp.up_proj.weight"], weights["norm.weight"]
    with pytest.raises(CheckpointError, match=r"lacks layer\.mlp\.up_proj\.weight, norm\.weight"):
        drafters.load(drafters.write(tmp_path / "missing", weights=weights))
    extra = drafters.tensors() | {"midlayer.self_attn.q_norm.weight": torch.ones(4)}
    with pytest.raises(CheckpointError, match=r"account for: layer\.self_attn\.q_norm\.weight"):
        drafters.load(drafters.write(tmp_path / "unknown", weights=extra))


def test_one_tensor_under_two_names_is_refused(tmp_path):
    weights = drafters.tensors() | {"layers.0.hidden_norm.weight": torch.ones(drafters.HIDDEN)}
    with pytest.raises(CheckpointError, match="under two names"):
        drafters.load(drafters.write(tmp_path, weights=weights))


def test_quantised_weights_are_refused(tmp_path):
    weights = drafters.tensors()
    weights["lm_head.weight"] = weights["lm_head.weight"].to(torch.int8)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is torch\.int8"):
        drafters.load(drafters.write(tmp_path, weights=weights))


def test_drafter_of_another_target_is_refused(tmp_path):
    folder = drafters.write(tmp_path)
    with pytest.raises(CheckpointError, match="vocab_size is 40, the target's is 50") as caught:
        drafters.load(folder, vocab=50)
    assert caught.value.file.endswith("config.json")
    with pytest.raises(CheckpointError, match="hidden size is 16, the target's is 32"):
        drafters.load(folder, hidden=32)


def test_nan_and_inf_are_loaded_with_a_warning(tmp_path, caplog):
    """Row 39: such a drafter costs speculation, not the service."""
    weights = drafters.tensors()
    weights["midlayer.mlp.up_proj.weight"][0, 0] = torch.nan
    with caplog.at_level(logging.WARNING):
        loaded = drafters.load(drafters.write(tmp_path, weights=weights))
    assert loaded.tensors["layer.mlp.up_proj.weight"][0, 0].isnan()
    assert "layer.mlp.up_proj.weight" in caplog.text


def test_default_hidden_states_are_inputs_of_2_middle_and_third_last(tmp_path):
    loaded = drafters.load(drafters.write(tmp_path))
    assert loaded.config.aux_layer_ids is None
    assert loaded.aux_layers(8) == (2, 4, 5)
    assert loaded.aux_layers(30) == (2, 15, 27)


@pytest.mark.parametrize("ids", [[1, 3, 4], [2, 4, 5]])
@pytest.mark.parametrize("place", ["top", "eagle_config"])
def test_both_layer_id_conventions_mean_the_same_hidden_states(tmp_path, ids, place):
    """Row 17: [1, ..] names outputs, [2, ..] inputs; of 8 layers both spell out the default."""
    named = {"eagle_aux_hidden_state_layer_ids": ids}
    config = {**drafters.CONFIG, **(named if place == "top" else {"eagle_config": named})}
    assert drafters.load(drafters.write(tmp_path, config)).aux_layers(8) == (2, 4, 5)


def test_hidden_states_of_a_deeper_target_are_refused(tmp_path):
    config = drafters.speculators_config(eagle_aux_hidden_state_layer_ids=[2, 18, 33])
    loaded = drafters.load(drafters.write(tmp_path, config, drafters.tensors("layers.0")))
    assert loaded.aux_layers(36) == (2, 18, 33)
    with pytest.raises(CheckpointError, match=r"\(2, 18, 33\), but the target has 12 layers"):
        loaded.aux_layers(12)


def test_bin_file_loads_weights_only(tmp_path):
    folder = drafters.write(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(drafters.tensors(), folder / "pytorch_model.bin")
    assert drafters.load(folder).draft_to_target.tolist() == drafters.TARGET_IDS


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code from the checkpoint ran')",))


@pytest.mark.parametrize("content", [{"fc.weight": _Malicious()}, {"fc.weight": 1}, [torch.ones(1)]])
def test_bin_file_with_anything_but_tensors_is_refused(tmp_path, content):
    folder = drafters.write(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as caught:
        drafters.load(folder)
    assert caught.value.file.endswith("pytorch_model.bin")


def _shard(folder, assignment):
    weights = drafters.tensors()
    (folder / "model.safetensors").unlink()
    for shard in set(assignment.values()):
        save_file({name: weights[name] for name, place in assignment.items() if place == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": assignment}))


def test_sharded_safetensors_load(tmp_path):
    folder = drafters.write(tmp_path)
    names = sorted(drafters.tensors())
    _shard(folder, {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)})
    assert drafters.load(folder).draft_to_target.tolist() == drafters.TARGET_IDS


@pytest.mark.parametrize(
    ("index", "fault"),
    [
        ("{", "no weight_map"),
        ('{"weight_map": ["a"]}', "no weight_map"),
        ('{"weight_map": {"fc.weight": "../outside.safetensors"}}', "not a file beside it"),
        ('{"weight_map": {"fc.weight": "absent.safetensors"}}', "not a file beside it"),
        ('{"weight_map": {"fc.weight": "some.safetensors"}}', "disagree about"),
    ],
)
def test_broken_shard_index_is_refused(tmp_path, index, fault):
    folder = drafters.write(tmp_path)
    (folder / "model.safetensors").rename(folder / "some.safetensors")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=fault):
        drafters.load(folder)


def test_folder_without_weights_and_truncated_file_are_refused(tmp_path):
    folder = drafters.write(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        drafters.load(folder)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"holds none of model\.safetensors"):
        drafters.load(folder)


def test_reference_drafter_loads(reference_dir):
    loaded = load_drafter_checkpoint(reference_dir / "golden-a" / "draft", target_vocab_size=320, target_hidden_size=64)
    assert loaded.aux_layers(8) == (2, 4, 5)
    assert len(loaded.draft_to_target.unique()) == 160
