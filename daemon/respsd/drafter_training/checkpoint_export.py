"""Writing a trained drafter as a checkpoint in the public EAGLE-3 format, which other loaders read too."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from respsd.drafter_training.feature_shards import write_tensors
from respsd.drafter_training.unrolled import UnrolledDrafter
from respsd.engine.drafter_config import DrafterConfig
from respsd.errors import TrainingDataError

_IN_LAYER = {
    "input_layernorm": "midlayer.input_layernorm",
    "hidden_norm": "midlayer.hidden_norm",
    "post_attention_layernorm": "midlayer.post_attention_layernorm",
    "q_proj": "midlayer.self_attn.q_proj",
    "k_proj": "midlayer.self_attn.k_proj",
    "v_proj": "midlayer.self_attn.v_proj",
    "o_proj": "midlayer.self_attn.o_proj",
    "gate_proj": "midlayer.mlp.gate_proj",
    "up_proj": "midlayer.mlp.up_proj",
    "down_proj": "midlayer.mlp.down_proj",
}
"""Published names of the modules that stand inside the decoder layer; the others keep their own."""


def export_checkpoint(drafter: UnrolledDrafter, draft_ids: Tensor, folder: Path, dtype: torch.dtype) -> None:
    """Write `config.json` and `model.safetensors`; raises TrainingDataError where the disk refuses."""
    tensors = published_tensors(drafter, dtype)
    vocab = torch.arange(drafter.config.vocab_size)
    tensors["d2t"] = draft_ids.cpu() - torch.arange(len(draft_ids))
    tensors["t2d"] = torch.isin(vocab, draft_ids.cpu())
    text = json.dumps(published_config(drafter.config, dtype), indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
        temporary = folder / "config.json.part"
        temporary.write_text(text)
        temporary.replace(folder / "config.json")
    except OSError as error:
        raise TrainingDataError(str(folder), f"cannot be written: {error}") from error


def published_tensors(drafter: UnrolledDrafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights under their published names; the scale of the taps goes into `fc`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in drafter.named_parameters():
        module, _, kind = name.rpartition(".")
        weight = parameter.detach()
        if module == "fc":
            weight = weight / drafter.tap_scale
        tensors[f"{_IN_LAYER.get(module, module)}.{kind}"] = weight.to("cpu", dtype).contiguous()
    return tensors


def published_config(config: DrafterConfig, dtype: torch.dtype) -> dict[str, object]:
    """The config.json that EAGLE's own loader, SGLang and this project read."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.rope.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
