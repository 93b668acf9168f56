"""A drafter checkpoint, loaded as published and checked: every tensor named, shaped and mapped, or refused.

Three forms are read: SafeAILab EAGLE-3 and SpecForge/SGLang (`midlayer.*`), and vLLM speculators (`layers.0.*`). All
get one set of names, those of `expected_shapes`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from respsd.engine.drafter_config import AUX_STATES, DrafterConfig, read_drafter_config
from respsd.engine.target import default_feature_layers
from respsd.engine.vocabulary_map import draft_to_target_ids
from respsd.engine.weights_file import read_tensors
from respsd.errors import CheckpointError

logger = logging.getLogger(__name__)

EMBEDDING = "embed_tokens.weight"
_LAYER_PREFIX = re.compile(r"^(midlayer|layers\.0)\.")
_IGNORED = re.compile(r"^(verifier_lm_head\.weight|verifier_norm\.weight|(.*\.)?rotary_emb\.inv_freq)$")
"""Copies of the target's tensors that speculators keeps for training, and a buffer of older transformers."""


@dataclass(frozen=True, slots=True)
class DrafterCheckpoint:
    """A drafter's weights under one set of names (`expected_shapes`), on the CPU in the dtype of the file."""

    folder: str
    config: DrafterConfig
    tensors: Mapping[str, Tensor]
    """Without `embed_tokens.weight` it uses the target's embedding."""
    draft_to_target: Tensor
    """Target id of each draft id, int64 [draft vocabulary]; absolute ids, not the file's offsets."""

    def aux_layers(self, target_layers: int) -> tuple[int, int, int]:
        """The target's layers whose inputs the drafter joins: low, mid, high; raise where it lacks one."""
        ids = self.config.aux_layer_ids or default_feature_layers(target_layers)
        if not all(0 <= one < target_layers for one in ids):
            raise CheckpointError(
                self.folder, f"takes the inputs of layers {ids}, but the target has {target_layers} layers"
            )
        return ids


def load_drafter_checkpoint(folder: Path, *, target_vocab_size: int, target_hidden_size: int) -> DrafterCheckpoint:
    """Load the checkpoint in `folder` for a target of these sizes; raise CheckpointError naming file and fault."""
    config_file = folder / "config.json"
    config = read_drafter_config(config_file)
    for name, ours, theirs in (
        ("vocab_size", config.vocab_size, target_vocab_size),
        ("target hidden size", config.target_hidden_size, target_hidden_size),
    ):
        if ours != theirs:
            raise CheckpointError(str(config_file), f"{name} is {ours}, the target's is {theirs}")

    published, file = read_tensors(folder)
    tensors = _canonical(published, file)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    draft_to_target = draft_to_target_ids(d2t, t2d, config.draft_vocab_size, config.vocab_size, file)
    _check_aux_states(tensors, config, file)
    _check_tensors(tensors, config, file)
    _warn_of_non_finite(tensors, file)
    return DrafterCheckpoint(str(folder), config, tensors, draft_to_target)


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a drafter of this configuration must have; its own embedding may come on top."""
    hidden, joined = config.hidden_size, AUX_STATES * config.target_hidden_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, joined),
        "layer.input_layernorm.weight": (hidden,),
        "layer.hidden_norm.weight": (hidden,),
        "layer.post_attention_layernorm.weight": (hidden,),
        "layer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "layer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "layer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "layer.self_attn.o_proj.weight": (hidden, queries),
        "layer.mlp.gate_proj.weight": (config.intermediate_size, hidden),
        "layer.mlp.up_proj.weight": (config.intermediate_size, hidden),
        "layer.mlp.down_proj.weight": (hidden, config.intermediate_size),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
    }
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (joined,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(AUX_STATES)}
    if config.attention_bias:
        sizes = {"q": queries, "k": keys, "v": keys, "o": hidden}
        shapes |= {f"layer.self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    return shapes


def _canonical(published: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, tensor in published.items():
        if _IGNORED.match(name):
            continue
        canonical = _LAYER_PREFIX.sub("layer.", name)
        if canonical in tensors:
            raise CheckpointError(file, f"holds {canonical!r} under two names")
        tensors[canonical] = tensor
    return tensors


def _check_aux_states(tensors: Mapping[str, Tensor], config: DrafterConfig, file: str) -> None:
    """A drafter trained on another number of hidden states gets a message of its own, not just a wrong shape."""
    fc = tensors.get("fc.weight")
    if fc is None or fc.dim() != 2:
        return
    states, rest = divmod(fc.shape[1], config.target_hidden_size)
    if rest or states != AUX_STATES:
        raise CheckpointError(
            file,
            f"fc.weight takes {fc.shape[1]} values, {fc.shape[1] / config.target_hidden_size:g} hidden states of "
            f"{config.target_hidden_size}; expected {AUX_STATES}",
        )


def _check_tensors(tensors: Mapping[str, Tensor], config: DrafterConfig, file: str) -> None:
    expected = expected_shapes(config)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise CheckpointError(file, f"lacks {', '.join(missing)}")
    if unknown := sorted(tensors.keys() - expected.keys() - {EMBEDDING}):
        raise CheckpointError(file, f"holds tensors that its config does not account for: {', '.join(unknown)}")
    if EMBEDDING in tensors:
        expected[EMBEDDING] = (config.vocab_size, config.hidden_size)
    elif config.hidden_size != config.target_hidden_size:
        raise CheckpointError(
            file,
            f"lacks {EMBEDDING}, and the target's embedding is {config.target_hidden_size} wide, "
            f"the drafter {config.hidden_size}",
        )
    for name, shape in expected.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(file, f"{name} has shape {tuple(tensor.shape)}; its config says {shape}")
        if not tensor.dtype.is_floating_point:
            raise CheckpointError(file, f"{name} is {tensor.dtype}; quantised weights are not supported")


def _warn_of_non_finite(tensors: Mapping[str, Tensor], file: str) -> None:
    """Not refused: steps whose drafts come out as NaN or Inf are decoded plainly and counted."""
    bad = sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all())
    if bad:
        logger.warning("%s: NaN or Inf in %s; drafts will fail", file, ", ".join(bad))
