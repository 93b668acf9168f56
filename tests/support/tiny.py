"""A tiny target and a drafter for it, made by hand so that drafts are often right without any training.

The target's layers only nudge the residual stream, so its next token depends mostly on the current one. The drafter
ignores its feature (its norm's weight is zero, and the residual is taken behind it), attends to rows with the same
token as its own, and so outputs nearly that token's embedding: with the target's own head that is the target's guess
but for the nudges. Both are written as published checkpoints and loaded as any user's.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN = 32
VOCAB = 288
DRAFT_VOCAB = 252
LAYERS = 8
HEADS = 4
CONTEXT = 256
EOS = 2
SPECIALS = ["<unk>", "<s>", "</s>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_target(folder: Path, *, nudge: float = 0.004, seed: int = 0) -> Path:
    """A Llama checkpoint with tokenizer; `nudge` scales how much context matters."""
    generator = torch.Generator().manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
                continue
            scale = 1.0 if "embed" in name else 0.5
            if "o_proj" in name or "down_proj" in name:
                scale = nudge
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer over every byte and a few merges."""
    raw = Tokenizer(models.BPE(unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["the cat sat on the mat and then the other cat sat on that hat"] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def write_drafter(folder: Path, target: Path, *, poison: float | None = None) -> Path:
    """An EAGLE-3 checkpoint (vLLM speculators' switches) for `write_target`'s model; `poison` goes into one weight."""
    weights = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32).state_dict()
    ids = torch.arange(VOCAB)[torch.arange(VOCAB) % 8 != 1][:DRAFT_VOCAB]
    draft_vocab = len(ids)
    zeros, eye = torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)
    # On rows of unit mean square, a score of 4 * 32 / sqrt(8) for the row's own token against about 0 for others.
    sharp = torch.cat((2.0 * eye, zeros), dim=1)
    tensors: dict[str, Tensor] = {
        "fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.zeros(HIDDEN),
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": sharp,
        "midlayer.self_attn.k_proj.weight": sharp.clone(),
        "midlayer.self_attn.v_proj.weight": torch.cat((eye, zeros), dim=1),
        "midlayer.self_attn.o_proj.weight": eye.clone(),
        "midlayer.mlp.gate_proj.weight": torch.zeros(8, HIDDEN),
        "midlayer.mlp.up_proj.weight": torch.zeros(8, HIDDEN),
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, 8),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": weights["lm_head.weight"][ids].clone(),
        "d2t": ids - torch.arange(draft_vocab),
        "t2d": torch.isin(torch.arange(VOCAB), ids),
    }
    if poison is not None:
        tensors["midlayer.mlp.gate_proj.weight"][0, 0] = poison
        tensors["midlayer.mlp.up_proj.weight"][0, 0] = 1.0
        tensors["midlayer.mlp.down_proj.weight"][0, 0] = 1.0
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "draft_vocab_size": draft_vocab,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "norm_before_residual": True,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
