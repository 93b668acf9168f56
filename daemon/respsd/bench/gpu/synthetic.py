"""Models with the shape of real ones and random weights, made on the device: for step times, without a download.

Drafts of a random drafter are never right, so a step's time is that of a whole draft and a whole verify, and tokens
per second mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from respsd.engine.api import ModelInfo
from respsd.engine.assembly import Models
from respsd.engine.checkpoint import DrafterCheckpoint, expected_shapes
from respsd.engine.drafter import Drafter
from respsd.engine.drafter_config import DrafterConfig
from respsd.engine.rope import RopeConfig
from respsd.engine.target import Target
from respsd.engine.tokenizer import HfTokenizer

_DEVIATION = 0.02
_MEMORY_SHARE = 0.5
"""Of the free memory, for the target's layers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-shaped target and of an EAGLE-3 drafter for it."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int
    context: int

    @property
    def layer_parameters(self) -> int:
        """Weights of one decoder layer, norms left out."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate


LLAMA_8B = Shape("llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128_256, 32_000, 8192)
TINY = Shape("tiny", 64, 128, 6, 4, 2, 16, 512, 256, 1024)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What our engine runs, and the same target for transformers; they share their weights."""

    models: Models
    plain: LlamaForCausalLM
    shape: Shape


def fitting(shape: Shape, dtype: torch.dtype, free_bytes: int) -> Shape:
    """The shape, with fewer layers where its layers would take more than half of the free memory."""
    layers = int(free_bytes * _MEMORY_SHARE) // (shape.layer_parameters * dtype.itemsize)
    return replace(shape, layers=max(4, min(shape.layers, layers)))


def make_synthetic(shape: Shape, dtype: torch.dtype, device: torch.device) -> Synthetic:
    """Make target, drafter and a tokenizer whose tokens are numbers."""
    torch.manual_seed(0)
    # A configuration each: the engine sets its own attention in it.
    with device:
        plain = AutoModelForCausalLM.from_config(_target_config(shape), dtype=dtype)
    with torch.device("meta"):
        shared = AutoModelForCausalLM.from_config(_target_config(shape), dtype=dtype)
    assert isinstance(plain, LlamaForCausalLM)
    assert isinstance(shared, LlamaForCausalLM)
    plain.train(mode=False).requires_grad_(False)
    shared.load_state_dict(plain.state_dict(), assign=True)
    shared.model.rotary_emb = plain.model.rotary_emb  # its frequencies are no part of a state dict
    target = Target(shared)
    drafter = Drafter(_drafter_checkpoint(shape, dtype, device), target.embedding)
    tokenizer = HfTokenizer(_tokenizer(shape.vocab))
    info = ModelInfo(
        target=f"synthetic {shape.name}",
        drafter="synthetic",
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        vocab_size=shape.vocab,
        context_length=shape.context,
        eos_token_ids=(),
    )
    return Synthetic(Models(target, drafter, tokenizer, info), plain, shape)


def _target_config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.context,
        initializer_range=_DEVIATION,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def _drafter_checkpoint(shape: Shape, dtype: torch.dtype, device: torch.device) -> DrafterCheckpoint:
    config = DrafterConfig(
        hidden_size=shape.hidden,
        target_hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        vocab_size=shape.vocab,
        draft_vocab_size=shape.draft_vocab,
        attention_bias=False,
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        aux_layer_ids=None,
        rope=RopeConfig(shape.head_dim, max_position_embeddings=shape.context),
    )

    def weight(name: str, size: tuple[int, ...]) -> Tensor:
        if "norm" in name:
            return torch.ones(size, dtype=dtype, device=device)
        return torch.randn(size, dtype=dtype, device=device) * _DEVIATION

    tensors = {name: weight(name, size) for name, size in expected_shapes(config).items()}
    return DrafterCheckpoint("synthetic", config, tensors, torch.arange(shape.draft_vocab, device=device))


def _tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    raw = Tokenizer(WordLevel({str(number): number for number in range(vocab)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=raw)
