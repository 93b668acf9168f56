"""The EAGLE-3 drafter: one decoder layer over (next token's embedding, feature) pairs.

Words: a *row* t of the drafter holds the feature of position t and the token of position t + 1. On the committed
prefix the feature is the target's (three taps through `fc`); inside a draft tree it is the drafter's own output for
the row's parent. See notes on EAGLE-3 (arXiv 2503.01840) and `tree.py` for how rows become a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from respsd.engine.attention import PackedSegment, Segment, attend_packed, masked_segment, plain_segment
from respsd.engine.checkpoint import DrafterCheckpoint
from respsd.engine.drafter_config import AUX_STATES
from respsd.engine.kv_cache import KvLayout, SequenceCache
from respsd.engine.packed_linear import PackedLinear, make_kernels
from respsd.engine.rope import RotaryEmbedding, rotate

Rotation = tuple[Tensor, Tensor]
"""cos and sin of some positions."""

CommittedRows = tuple[SequenceCache, Tensor, Tensor]
"""A sequence's drafter cache; int64 [rows], each the token that follows its row's position; the target's taps,
[rows, 3 * target hidden]."""

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

    def make_kernels(self) -> None:
        """See `packed_linear.make_kernels`."""
        make_kernels((self._fc, self._qkv, self._o, self._gate_up, self._down, self._lm_head))

    def extend(self, cache: SequenceCache, tokens: Tensor, features: Tensor) -> Tensor:
        """`extend_all` of one sequence; returns [1, hidden]."""
        return self.extend_all([(cache, tokens, features)])

    def extend_all(self, batch: Sequence[CommittedRows]) -> Tensor:
        """Append each sequence's committed rows to its cache; returns their last rows' outputs, [sequences, hidden].

        One pass serves all sequences, unless some have more rows than a pass takes of one sequence.
        """
        outputs: list[Tensor | None] = [None] * len(batch)
        start = 0
        while unfinished := [number for number, (_, tokens, _) in enumerate(batch) if tokens.shape[0] > start]:
            chunk = slice(start, start + _EXTEND_CHUNK)
            lasts = self._append([(batch[i][0], batch[i][1][chunk], batch[i][2][chunk]) for i in unfinished])
            for number, last in zip(unfinished, lasts.split(1), strict=True):
                outputs[number] = last
            start += _EXTEND_CHUNK
        return torch.cat([output for output in outputs if output is not None])

    def _append(self, batch: Sequence[CommittedRows]) -> Tensor:
        segments: list[PackedSegment] = []
        positions, lasts, first = [], [], 0
        for cache, tokens, _ in batch:
            count = tokens.shape[0]
            causal = None
            if count > 1:
                causal = torch.ones((count, count), dtype=torch.bool, device=tokens.device).tril()
            segments.append(plain_segment(cache, slice(first, first + count), causal, self._group))
            positions.append(torch.arange(cache.length, cache.length + count, device=tokens.device))
            first += count
            lasts.append(first - 1)
        out = self.forward(
            segments,
            join([tokens for _, tokens, _ in batch]),
            self.fuse(join([features for _, _, features in batch])),
            self._rotary.cos_sin(join(positions), self.layout.dtype),
        )
        for cache, tokens, _ in batch:
            cache.length += tokens.shape[0]
        return out[-1:] if len(batch) == 1 else out[lasts]

    def rotation(self, start: int, count: int) -> Rotation:
        """cos and sin of `count` positions from `start` on, each [count, head_dim]."""
        positions = torch.arange(start, start + count, device=self.layout.device)
        return self._rotary.cos_sin(positions, self.layout.dtype)

    def rotation_at(self, positions: Sequence[int], counts: Sequence[int]) -> Rotation:
        """cos and sin of some positions, each for so many rows in a row, [rows, head_dim]."""
        device = self.layout.device
        each = torch.tensor(positions, device=device)
        if len(positions) > 1:
            each = each.repeat_interleave(torch.tensor(counts, device=device), output_size=sum(counts))
        return self._rotary.cos_sin(each, self.layout.dtype)

    def rotation_of(self, positions: Tensor) -> Rotation:
        """cos and sin of each position, [rows, head_dim]. :param positions: int64 [rows]."""
        return self._rotary.cos_sin(positions, self.layout.dtype)

    def frontier(self, cache: SequenceCache, rows: slice, offset: int, visible: Tensor) -> Segment:
        """One sequence's frontier of a draft tree in a packed pass; its rows are scratch at `cache.length + offset`.

        :param rows: its rows in the pass.
        :param visible: bool [frontier, offset + frontier]: which tree rows each row attends to, besides the prefix.
        """
        return masked_segment(cache, rows, offset, visible, self._group)

    def expand(
        self,
        cache: SequenceCache,
        offset: int,
        tokens: Tensor,
        features: Tensor,
        rotation: Rotation,
        visible: Tensor,
    ) -> Tensor:
        """Run one sequence's frontier, see `frontier`, and return its outputs, [frontier, hidden].

        :param tokens: int64 [frontier]; `features` [frontier, hidden], the outputs of their parents.
        :param rotation: each [1, head_dim]: all rows of a level share one position.
        """
        segment = self.frontier(cache, slice(0, tokens.shape[0]), offset, visible)
        return self.forward([segment], tokens, features, rotation)

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
        segments: Sequence[PackedSegment],
        tokens: Tensor,  # int64 [rows]
        features: Tensor,  # [rows, hidden]
        rotation: Rotation,  # each [rows or 1, head_dim]
    ) -> Tensor:
        """The decoder layer over the rows of all segments; the outputs are the features of each row's children.

        :return: [rows, hidden].
        """
        config, rows = self.config, tokens.shape[0]
        embedded = self._norm(F.embedding(tokens, self._embedding), self._token_norm)
        normed = self._norm(features, self._feature_norm)
        residual = normed if config.norm_before_residual else features
        qkv = self._qkv(torch.cat((embedded, normed), dim=-1))
        qkv = qkv.view(rows, config.heads + 2 * config.kv_heads, config.head_dim).transpose(0, 1)
        rotated, values = qkv.tensor_split((config.heads + config.kv_heads,))
        query, keys = rotate(rotated, *rotation).tensor_split((config.heads,))  # [heads or kv_heads, rows, head_dim]
        attended = attend_packed(segments, 0, query, keys, values, self._scale).reshape(rows, -1)
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


def join(parts: Sequence[Tensor]) -> Tensor:
    """Rows side by side; no copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
