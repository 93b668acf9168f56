"""The drafter's one layer, under every switch that published checkpoints use, against the formulas written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support import models
from torch import Tensor

from respsd.engine.checkpoint import DrafterCheckpoint, expected_shapes, load_drafter_checkpoint
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.rope import RotaryEmbedding

HIDDEN, VOCAB, ROWS = 32, 288, 7
SWITCHES = ("attention_bias", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def checkpoint(**switches: bool) -> DrafterCheckpoint:
    """Random weights for a configuration with grouped heads and these switches."""
    base = load_drafter_checkpoint(models.folders()[1], target_vocab_size=VOCAB, target_hidden_size=HIDDEN).config
    config = replace(base, heads=4, kv_heads=2, **{**dict.fromkeys(SWITCHES, False), **switches})
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 1.0)
        for name, shape in expected_shapes(config).items()
    }
    return DrafterCheckpoint("random", config, tensors, torch.arange(config.draft_vocab_size))


def by_the_book(source: DrafterCheckpoint, embedding: Tensor, tokens: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and log-probabilities of every row, in one causal pass without a cache."""
    config, w = source.config, source.tensors

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weight

    if config.norm_before_fc:
        taps = norm(taps, w["input_norm.weight"])
    if config.fc_norm:
        taps = torch.cat([norm(x, w[f"fc_norm.{i}.weight"]) for i, x in enumerate(taps.chunk(3, -1))], -1)
    feature = taps @ w["fc.weight"].T
    normed = norm(feature, w["layer.hidden_norm.weight"])
    x = torch.cat((norm(embedding[tokens], w["layer.input_layernorm.weight"]), normed), -1)

    def heads(name: str, count: int) -> Tensor:
        out = x @ w[f"layer.self_attn.{name}_proj.weight"].T
        if config.attention_bias:
            out = out + w[f"layer.self_attn.{name}_proj.bias"]
        return out.view(len(tokens), count, config.head_dim).transpose(0, 1)

    cos, sin = RotaryEmbedding(config.rope, torch.device("cpu")).cos_sin(torch.arange(len(tokens)), torch.float32)

    def rotate(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return y * cos + torch.cat((-second, first), -1) * sin

    group = config.heads // config.kv_heads
    query, key = rotate(heads("q", config.heads)), rotate(heads("k", config.kv_heads)).repeat_interleave(group, 0)
    value = heads("v", config.kv_heads).repeat_interleave(group, 0)
    scores = (query @ key.transpose(1, 2)) * config.head_dim**-0.5
    hidden_later = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    attended = scores.masked_fill(hidden_later, float("-inf")).softmax(-1) @ value
    out = attended.transpose(0, 1).reshape(len(tokens), -1) @ w["layer.self_attn.o_proj.weight"].T
    if config.attention_bias:
        out = out + w["layer.self_attn.o_proj.bias"]
    hidden = (normed if config.norm_before_residual else feature) + out
    inner = norm(hidden, w["layer.post_attention_layernorm.weight"])
    gate, up = inner @ w["layer.mlp.gate_proj.weight"].T, inner @ w["layer.mlp.up_proj.weight"].T
    hidden = hidden + (F.silu(gate) * up) @ w["layer.mlp.down_proj.weight"].T
    final = norm(hidden, w["norm.weight"])
    return (final if config.norm_output else hidden), (final @ w["lm_head.weight"].T).log_softmax(-1)


CASES = [(), *((switch,) for switch in SWITCHES), SWITCHES]


@torch.inference_mode()
@pytest.mark.parametrize("on", CASES, ids="+".join)
def test_outputs_equal_the_formulas(on):
    source = checkpoint(**dict.fromkeys(on, True))
    generator = torch.Generator().manual_seed(6)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    tokens = torch.randint(VOCAB, (ROWS,), generator=generator)
    taps = torch.randn(ROWS, 3 * HIDDEN, generator=generator)
    outputs, log_probs = by_the_book(source, embedding, tokens, taps)
    drafter = Drafter(source, embedding)
    for split in (ROWS, 1, 3):  # whole, row by row, in chunks: the cache must give the same
        cache = SequenceCache(drafter.layout, ROWS)
        for start in range(0, ROWS, split):
            index = torch.arange(start, min(start + split, ROWS))
            out = drafter.extend(cache, tokens[index], taps[index])
            torch.testing.assert_close(out[0], outputs[index[-1]], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(drafter.log_probs(out)[0], log_probs[index[-1]], atol=1e-4, rtol=1e-4)
        assert cache.length == ROWS


@torch.inference_mode()
def test_a_long_catch_up_is_cut_into_passes(monkeypatch):
    drafter = models.drafter()
    tokens, taps = torch.arange(3, 103), torch.randn(100, 3 * HIDDEN)
    whole = drafter.extend(SequenceCache(drafter.layout, 100), tokens, taps)
    monkeypatch.setattr("respsd.engine.drafter._EXTEND_CHUNK", 7)
    parts = drafter.extend(SequenceCache(drafter.layout, 100), tokens, taps)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


def test_the_checkpoints_own_embedding_is_used_where_it_has_one():
    source = checkpoint()
    own = torch.randn(VOCAB, HIDDEN)
    with_own = replace(source, tensors={**source.tensors, "embed_tokens.weight": own})
    cache = SequenceCache(Drafter(source, own).layout, 1)
    tokens, taps = torch.tensor([5]), torch.randn(1, 3 * HIDDEN)
    with torch.inference_mode():
        expected = Drafter(source, own).extend(cache, tokens, taps)
        cache.length = 0
        actual = Drafter(with_own, torch.zeros(VOCAB, HIDDEN)).extend(cache, tokens, taps)
    torch.testing.assert_close(actual, expected)
