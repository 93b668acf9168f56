"""Drafter checkpoints with random weights in the published forms, for tests that break them one way at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from respsd.engine.checkpoint import DrafterCheckpoint, load_drafter_checkpoint

HIDDEN = 16
INTERMEDIATE = 24
VOCAB = 40
TARGET_IDS = [0, 3, 4, 9, 11, 12, 20, 25, 31, 39]
DRAFT_VOCAB = len(TARGET_IDS)

CONFIG: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bias": False,
}

LAYER = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
LAYER += ("rms_norm_eps", "hidden_act", "vocab_size", "max_position_embeddings", "rope_theta", "model_type")


def offsets(target_ids: list[int]) -> Tensor:
    """d2t of a list of target ids."""
    return torch.tensor(target_ids) - torch.arange(len(target_ids))


def mask(target_ids: list[int], vocab: int = VOCAB) -> Tensor:
    """t2d of a list of target ids."""
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[target_ids] = True
    return t2d


def tensors(prefix: str = "midlayer") -> dict[str, Tensor]:
    """SafeAILab's tensors with random numbers; `prefix` is the layer's name."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{prefix}.input_layernorm.weight": (HIDDEN,),
        f"{prefix}.hidden_norm.weight": (HIDDEN,),
        f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}.self_attn.q_proj.weight": (16, 2 * HIDDEN),
        f"{prefix}.self_attn.k_proj.weight": (8, 2 * HIDDEN),
        f"{prefix}.self_attn.v_proj.weight": (8, 2 * HIDDEN),
        f"{prefix}.self_attn.o_proj.weight": (HIDDEN, 16),
        f"{prefix}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    }
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return made | {"d2t": offsets(TARGET_IDS), "t2d": mask(TARGET_IDS)}


def speculators_config(**switches: object) -> dict[str, object]:
    """The same drafter as vLLM speculators writes it: the layer nested, the switches at the top."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "any/target"}},
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": None,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": None,
        "transformer_layer_config": {name: CONFIG[name] for name in LAYER},
    } | switches


def write(folder: Path, config: Mapping[str, object] = CONFIG, weights: Mapping[str, Tensor] | None = None) -> Path:
    """Write a checkpoint folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors() if weights is None else weights), folder / "model.safetensors")
    return folder


def load(folder: Path, *, vocab: int = VOCAB, hidden: int = HIDDEN) -> DrafterCheckpoint:
    """Load a folder for a target of the usual sizes."""
    return load_drafter_checkpoint(folder, target_vocab_size=vocab, target_hidden_size=hidden)
