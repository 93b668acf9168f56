"""The lean forward is transformers' own, for every family of models that it takes, and takes no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from respsd.engine import lean_decoder
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.target import Rows, Target, causal_rows
from respsd.errors import CheckpointError

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 8,
}
FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "llama-bias": LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=True),
    "llama-gelu": LlamaConfig(**SIZES, hidden_act="gelu"),
    "llama-one-group": LlamaConfig(**{**SIZES, "num_key_value_heads": 4}),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05}


def model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights, the same ones each time; norms and biases differ from 1 and 0."""
    torch.manual_seed(5)
    made = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.15))
    return made.to(dtype)


def outputs(target: Target) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of a prompt, then of a draft tree behind it."""
    cache = SequenceCache(target.layout, 64)
    prompt = target.forward([causal_rows(cache, [3, 96, 5, 41, 8, 8, 20], scored=2)])[0]
    cache.advance(7)
    visible = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    tree = Rows(cache, torch.tensor([4, 9, 11, 60]), torch.tensor([7, 8, 8, 9]), visible, torch.tensor([0, 1, 2, 3]))
    verified = target.forward([tree])[0]
    return torch.cat((prompt.logits, verified.logits)), torch.cat((prompt.features, verified.features))


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_features_are_those_of_the_unmodified_model(family, exact, dtype):
    unmodified = Target(model(FAMILIES[family], dtype), packed_weights=False)
    lean = Target(model(FAMILIES[family], dtype), packed_weights=True, exact=exact)
    assert lean.is_lean
    assert not unmodified.is_lean
    for ours, theirs in zip(outputs(lean), outputs(unmodified), strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@torch.inference_mode()
def test_moved_taps_are_followed():
    unmodified, lean = (Target(model(FAMILIES["llama"], torch.float32), packed_weights=way) for way in (False, True))
    before = outputs(lean)[1]
    for target in (unmodified, lean):
        target.tap((0, 1, 4))
    torch.testing.assert_close(outputs(lean)[1], outputs(unmodified)[1], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(outputs(lean)[1], before, atol=1e-2)


def test_joined_weights_replace_those_that_they_are_made_of():
    before = model(FAMILIES["qwen2"], torch.float32)
    parameters = sum(parameter.numel() for parameter in before.parameters())
    lean_decoder.join_weights(before)
    assert sum(parameter.numel() for parameter in before.parameters()) == parameters


def test_other_layers_are_left_to_transformers():
    granite = GraniteConfig(**{name: size for name, size in SIZES.items() if name != "head_dim"})
    target = Target(model(granite, torch.float32), packed_weights=True)
    assert not target.is_lean
    assert target.packing is not None


def test_transformers_own_code_runs_where_the_setting_says_so_also_exactly():
    for exact in (False, True):
        assert not Target(model(FAMILIES["llama"], torch.float32), packed_weights=False, exact=exact).is_lean


def test_linear_layers_that_cannot_be_joined_are_left_to_transformers():
    class Quantised(torch.nn.Linear):
        pass

    llama = model(FAMILIES["llama"], torch.float32)
    assert lean_decoder.takes(llama)
    llama.get_decoder().layers[3].mlp.up_proj.__class__ = Quantised
    assert not lean_decoder.takes(llama)


def test_a_model_that_computes_something_else_than_its_layers_class_is_refused(monkeypatch):
    """As a later transformers might."""
    monkeypatch.setattr(lean_decoder, "LAYER_CLASSES", frozenset({"GraniteDecoderLayer"}))
    granite = GraniteConfig(
        **{name: size for name, size in SIZES.items() if name != "head_dim"}, residual_multiplier=0.2
    )
    with pytest.raises(CheckpointError, match=r"GraniteForCausalLM computes other logits.*packed_weights = off"):
        Target(model(granite, torch.float32), packed_weights=True)


def test_a_loaded_checkpoint_is_lean_by_default(tmp_path: Path):
    model(FAMILIES["mistral"], torch.float32).save_pretrained(tmp_path)
    assert Target.load(tmp_path, torch.float32, CPU, packed_weights=None).is_lean
