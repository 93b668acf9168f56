"""The forward of a Llama-like model in few, wide operations: what transformers' code computes, without its overhead.

A small model's step on a processor is mostly many small operations: of the 39 ms that one row of the demo model takes
in transformers' code (Xeon, two cores, weights packed) 22 are not spent in matrix products. Here an attention's three
projections are one product and an MLP's gate and up another, norms and rotations are one operation each where they
were eight and five, and no module is called. Every number is rounded where transformers rounds it.

Only decoders whose layers are of a known class are taken, and `Target` tries the result against the unmodified model
before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from respsd.engine.attention import PackedSegment, attend_packed
from respsd.engine.exactness import Product

LAYER_CLASSES = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})
"""transformers' layers that compute what `_Layer` does."""

_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class LeanDecoder:
    """A model's embedding, layers, final norm and head, called one after the other."""

    def __init__(self, model: PreTrainedModel) -> None:
        """:param model: its weights joined by `join_weights` and, where they are to be, packed."""
        decoder: Any = model.get_decoder()  # transformers' decoders share no typed base class
        self._embedding: nn.Embedding = decoder.embed_tokens
        self._rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = decoder.rotary_emb
        self._layers = [_Layer(layer) for layer in decoder.layers]
        self._norm = _Norm(decoder.norm)
        head = model.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        self._head: Product = head.forward

    def __call__(
        self,
        tokens: Tensor,  # int64 [rows]
        positions: Tensor,  # int64 [rows]
        segments: Sequence[PackedSegment],
        scored: Tensor | None,  # int64 [scored]
        taps: Collection[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """As `Target.run`: logits, [scored, vocab], and the inputs of the layers named by `taps`, [rows, hidden]."""
        hidden = self._embedding(tokens)  # [rows, hidden]
        cos, sin = self._rotary(hidden[None], positions[None])  # each [1, rows, head_dim]
        half = sin.shape[-1] // 2
        # A rotation's other half is negated in its first half; signs in the sine leave a plain roll.
        rotation = cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), dim=-1)
        tapped: dict[int, Tensor] = {}
        for number, layer in enumerate(self._layers):
            if number in taps:
                tapped[number] = hidden
            hidden = layer(hidden, rotation, segments)
        normed = self._norm(hidden if scored is None else hidden[scored])
        return self._head(normed), tapped


def takes(model: PreTrainedModel) -> bool:
    """Whether the model's layers are of a kind that a LeanDecoder computes."""
    decoder: Any = model.get_decoder()
    head = model.get_output_embeddings()
    return type(head) is nn.Linear and all(
        type(layer).__name__ in LAYER_CLASSES and _is_plain(layer) for layer in decoder.layers
    )


def join_weights(model: PreTrainedModel) -> None:
    """Put one linear layer in the place of those that have one input; the model's own forward is lost with it."""
    decoder: Any = model.get_decoder()
    for layer in decoder.layers:
        _join(layer.self_attn, _ATTENTION, "qkv_proj")
        _join(layer.mlp, _MLP, "gate_up_proj")


def _is_plain(layer: Any) -> bool:
    """Whether its linear layers are no others, such as quantised ones, which could not be joined."""
    linears = [getattr(layer.self_attn, name) for name in (*_ATTENTION, "o_proj")]
    linears += [getattr(layer.mlp, name) for name in (*_MLP, "down_proj")]
    return all(type(linear) is nn.Linear for linear in linears)


class _Norm:
    """RMSNorm."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight.detach()
        self._epsilon: float = module.variance_epsilon
        self._shape = tuple(self._weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self._weight, self._epsilon)


class _Layer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._number: int = attention.layer_idx
        self._head_dim: int = attention.head_dim
        self._scale: float = attention.scaling
        self._heads: int = attention.o_proj.in_features // self._head_dim
        self._kv_heads: int = self._heads // attention.num_key_value_groups
        self._attention_norm, self._mlp_norm = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._head_norms = [_Norm(norm) for norm in norms if norm is not None]
        self._qkv: Product = attention.qkv_proj.forward
        self._o: Product = attention.o_proj.forward
        self._gate_up: Product = mlp.gate_up_proj.forward
        self._down: Product = mlp.down_proj.forward
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn

    def __call__(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], segments: Sequence[PackedSegment]) -> Tensor:
        """:param hidden: [rows, hidden], as is the result. :param rotation: each [rows, 1, head_dim]."""
        rows = hidden.shape[0]
        joint = self._qkv(self._attention_norm(hidden)).view(rows, -1, self._head_dim)  # [rows, heads, head_dim]
        both, values = joint.split((self._heads + self._kv_heads, self._kv_heads), dim=1)
        if self._head_norms:
            parts = both.split((self._heads, self._kv_heads), dim=1)
            both = torch.cat([norm(part) for norm, part in zip(self._head_norms, parts, strict=True)], dim=1)
        cos, sin = rotation
        rotated = (both * cos).add_(both.roll(self._head_dim // 2, dims=-1).mul_(sin)).transpose(0, 1)
        queries, keys = rotated.split((self._heads, self._kv_heads))  # [heads, rows, head_dim]
        attended = attend_packed(segments, self._number, queries, keys, values.transpose(0, 1), self._scale)
        hidden = hidden + self._o(attended.reshape(rows, -1))
        gate, up = self._gate_up(self._mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self._down(self._activation(gate) * up)


def _join(module: nn.Module, names: Iterable[str], joined: str) -> None:
    """Replace several linear layers of one input by one, called `joined`."""
    layers: list[nn.Linear] = [getattr(module, name) for name in names]
    wide = nn.Linear(1, 1, bias=False, device="meta")
    wide.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]), requires_grad=False)
    wide.out_features, wide.in_features = wide.weight.shape
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if biases:
        wide.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    for name in names:
        delattr(module, name)
    setattr(module, joined, wide)
