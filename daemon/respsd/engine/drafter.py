"""The EAGLE-3 drafter: one decoder layer over (next token's embedding, feature) pairs.

Words: a *row* t of the drafter holds the feature of position t and the token of position t + 1. On the committed
prefix the feature is the target's (three taps through `fc`); inside a draft tree it is the drafter's own output for
the row's parent. See notes on EAGLE-3 (arXiv 2503.01840) and `tree.py` for how rows become a tree.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from respsd.engine.attention import attend, segment_mask
from respsd.engine.checkpoint import DrafterCheckpoint
from respsd.engine.drafter_config import AUX_STATES
from respsd.engine.kv_cache import KvLayout, SequenceCache
from respsd.engine.packed_linear import PackedLinear
from respsd.engine.rope import RotaryEmbedding

Rotation = tuple[Tensor, Tensor]
"""cos and sin of some positions."""

_EXTEND_CHUNK = 512
"""Prefix rows per pass, which bounds the attention mask of a long catch-up."""


class Drafter:
    """A loaded drafter; stateless but for its weights, so one serves every sequence."""

    def __init__(self, checkpoint: DrafterCheckpoint, target_embedding: Tensor) -> None:
        config, device, dtype = checkpoint.config, target_embedding.device, target_embedding.dtype
        self.config = config
        weights = {name: tensor.to(device, dtype) for name, tensor in checkpoint.tensors.items()}
        self._embedding = weights.get("embed_tokens.weight", target_embedding)
        self._fc = PackedLinear(weights["fc.weight"])
        self._joined_norm = weights.get("input_norm.weight")
        self._fc_norms = [weights[f"fc_norm.{i}.weight"] for i in range(AUX_STATES)] if config.fc_norm else None
        self._token_norm = weights["layer.input_layernorm.weight"]
        self._feature_norm = weights["layer.hidden_norm.weight"]
        self._mlp_norm = weights["layer.post_attention_layernorm.weight"]
        self._final_norm = weights["norm.weight"]

        def joined(names: str, suffix: str) -> Tensor:
            return torch.cat([weights[f"layer.{name}_proj.{suffix}"] for name in names.split()])

        # Joined once: a draft level is a handful of small products, so each launch saved counts.
        attention = "self_attn.q self_attn.k self_attn.v"
        self._qkv = PackedLinear(
            joined(attention, "weight"), joined(attention, "bias") if config.attention_bias else None
        )
        self._o = PackedLinear(weights["layer.self_attn.o_proj.weight"], weights.get("layer.self_attn.o_proj.bias"))
        self._gate_up = PackedLinear(joined("mlp.gate mlp.up", "weight"))
        self._down = PackedLinear(weights["layer.mlp.down_proj.weight"])
        self._lm_head = PackedLinear(weights["lm_head.weight"])
        self.draft_to_target = checkpoint.draft_to_target.to(device)  # int64 [draft_vocab], absolute ids
        self._rotary = RotaryEmbedding(config.rope, device)
        self.layout = KvLayout(1, config.kv_heads, config.head_dim, dtype, device)
        self._group = config.heads // config.kv_heads
        self._scale = config.head_dim**-0.5

    def extend(self, cache: SequenceCache, tokens: Tensor, features: Tensor) -> Tensor:
        """Append committed rows to the cache and return the last row's output, [1, hidden].

        :param tokens: int64 [rows], each the token that follows its row's position.
        :param features: [rows, 3 * target hidden], the target's taps.
        """
        out = features
        for start in range(0, tokens.shape[0], _EXTEND_CHUNK):
            chunk = slice(start, start + _EXTEND_CHUNK)
            count = tokens[chunk].shape[0]
            mask = None
            if count > 1:
                causal = torch.ones((count, count), dtype=torch.bool, device=tokens.device).tril()
                mask = segment_mask(causal, cache.length, self._group, self.layout.dtype)
            rotation = self.rotation(cache.length, count)
            out = self.forward(cache, cache.length, tokens[chunk], self.fuse(features[chunk]), rotation, mask)
            cache.length += count
        return out[-1:]

    def rotation(self, start: int, count: int) -> Rotation:
        """cos and sin of `count` positions from `start` on, each [count, head_dim]."""
        positions = torch.arange(start, start + count, device=self.layout.device)
        return self._rotary.cos_sin(positions, self.layout.dtype)

    def expand(
        self,
        cache: SequenceCache,
        offset: int,
        tokens: Tensor,
        features: Tensor,
        rotation: Rotation,
        visible: Tensor,
    ) -> Tensor:
        """Run one frontier of a draft tree; its rows become scratch at `cache.length + offset`.

        :param tokens: int64 [frontier]; `features` [frontier, hidden], the outputs of their parents.
        :param rotation: each [1, head_dim]: all rows of a level share one position.
        :param visible: bool [frontier, offset + frontier]: which tree rows each row attends to, besides the prefix.
        :return: outputs, [frontier, hidden].
        """
        prefix, (rows, tree) = cache.length, visible.shape
        mask = torch.zeros((self._group, rows, prefix + tree), dtype=self.layout.dtype, device=tokens.device)
        mask[:, :, prefix:].masked_fill_(~visible, float("-inf"))
        return self.forward(cache, prefix + offset, tokens, features, rotation, mask.view(-1, prefix + tree))

    def fuse(self, taps: Tensor) -> Tensor:
        """Target taps to drafter features: [rows, 3 * target hidden] -> [rows, hidden]."""
        if self._joined_norm is not None:
            taps = self._norm(taps, self._joined_norm)
        if self._fc_norms is not None:
            states = taps.chunk(AUX_STATES, dim=-1)
            normed = [self._norm(state, weight) for state, weight in zip(states, self._fc_norms, strict=True)]
            taps = torch.cat(normed, dim=-1)
        return self._fc(taps)

    def forward(
        self,
        cache: SequenceCache,
        start: int,
        tokens: Tensor,  # int64 [rows]
        features: Tensor,  # [rows, hidden]
        rotation: Rotation,  # each [rows or 1, head_dim]
        mask: Tensor | None,  # additive, [rows * group, start + rows]
    ) -> Tensor:
        """The decoder layer: outputs [rows, hidden], the recurrent feature of each row's children."""
        config, rows = self.config, tokens.shape[0]
        embedded = self._norm(F.embedding(tokens, self._embedding), self._token_norm)
        normed = self._norm(features, self._feature_norm)
        residual = normed if config.norm_before_residual else features
        qkv = self._qkv(torch.cat((embedded, normed), dim=-1))
        qkv = qkv.view(rows, config.heads + 2 * config.kv_heads, config.head_dim).transpose(0, 1)
        rotated, values = qkv.tensor_split((config.heads + config.kv_heads,))
        cos, sin = rotation
        rotated = rotated * cos + _rotate_half(rotated) * sin  # [heads + kv_heads, rows, head_dim]
        query, keys = rotated.tensor_split((config.heads,))
        seen_keys, seen_values = cache.write(0, start, keys, values)
        attended = attend(query, seen_keys, seen_values, mask, self._scale).reshape(rows, -1)
        hidden = residual + self._o(attended)
        gate, up = self._gate_up(self._norm(hidden, self._mlp_norm)).chunk(2, dim=-1)
        hidden = hidden + self._down(F.silu(gate) * up)
        return self._norm(hidden, self._final_norm) if config.norm_output else hidden

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities over the draft vocabulary in float32, [rows, draft_vocab]."""
        normed = hidden if self.config.norm_output else self._norm(hidden, self._final_norm)
        return self._lm_head(normed).log_softmax(dim=-1, dtype=torch.float32)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
