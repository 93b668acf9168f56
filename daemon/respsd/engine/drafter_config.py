"""What a drafter checkpoint's config.json says, in one form for the three published ones.

SafeAILab EAGLE-3 and SpecForge/SGLang write the layer's sizes at the top level, SGLang some switches below
`eagle_config`; vLLM speculators nests the layer in `transformer_layer_config`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from respsd.engine.rope import RopeConfig, read_rope_config
from respsd.errors import CheckpointError

logger = logging.getLogger(__name__)

Json = Mapping[str, object]

AUX_STATES = 3
"""Hidden states of the target that EAGLE-3 joins: low, mid, high."""

_LLAMA_SHAPED = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Layers of these families compute as Llama's; what they add (biases, q_norm) shows as tensors and is checked there."""


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Sizes and switches of one EAGLE-3 drafter: one Llama decoder layer on [embedding ; feature]."""

    hidden_size: int
    target_hidden_size: int
    """Width of each of the target's hidden states."""
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    """Always silu: another activation is refused."""
    vocab_size: int
    draft_vocab_size: int
    attention_bias: bool
    norm_before_residual: bool
    """The layer's residual is the feature after `hidden_norm` instead of before it."""
    norm_before_fc: bool
    """One RMSNorm (`input_norm`) over the joined hidden states before `fc`."""
    fc_norm: bool
    """An RMSNorm (`fc_norm.i`) for each hidden state before they are joined; after `input_norm` where both exist."""
    norm_output: bool
    """The recurrent feature is the layer's output after the final norm instead of before it."""
    aux_layer_ids: tuple[int, int, int] | None
    """The target's layers whose inputs are joined; None where the checkpoint leaves it at 2, L // 2, L - 3."""
    rope: RopeConfig


def read_drafter_config(file: Path) -> DrafterConfig:
    """Read a config.json; raise CheckpointError for what is missing, malformed or cannot be run."""
    reader = _Reader(str(file), _read_json(file))
    layer = reader.layer
    nested = layer is not reader.top
    model_type = layer.get("model_type", "llama")
    if model_type not in _LLAMA_SHAPED:
        raise CheckpointError(reader.file, f"model_type {model_type!r} is not a Llama-shaped layer")
    speculator = reader.top.get("speculators_model_type", "eagle3")
    if speculator != "eagle3":
        raise CheckpointError(reader.file, f"speculators_model_type {speculator!r} is not 'eagle3'")
    if nested and "norm_before_residual" not in reader.top:
        logger.warning("%s does not say norm_before_residual; taken as false, its format's default", file)

    hidden_size, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    head_dim = reader.size("head_dim", hidden_size // heads)
    vocab_size = reader.size("vocab_size")
    config = DrafterConfig(
        hidden_size=hidden_size,
        target_hidden_size=reader.size("target_hidden_size", hidden_size),
        intermediate_size=reader.size("intermediate_size"),
        heads=heads,
        kv_heads=reader.size("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=reader.positive("rms_norm_eps"),
        hidden_act=reader.activation(),
        vocab_size=vocab_size,
        draft_vocab_size=reader.size("draft_vocab_size", vocab_size),
        attention_bias=reader.switch("attention_bias"),
        norm_before_residual=reader.switch("norm_before_residual"),
        norm_before_fc=reader.switch("norm_before_fc"),
        fc_norm=reader.switch("fc_norm"),
        norm_output=reader.switch("norm_output"),
        aux_layer_ids=reader.aux_layer_ids(),
        rope=read_rope_config(layer, head_dim, reader.file),
    )
    if heads % config.kv_heads:
        raise CheckpointError(reader.file, f"{heads} attention heads cannot share {config.kv_heads} key-value heads")
    _check_layer_kind(layer, reader.file)
    return config


def _read_json(file: Path) -> Json:
    try:
        config: object = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(str(file), "is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), f"is not readable JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise CheckpointError(str(file), "is not a JSON object")
    return config


def _check_layer_kind(layer: Json, file: str) -> None:
    """One full-attention layer is what the drafter's forward computes."""
    layers = layer.get("num_hidden_layers", 1)
    if layers != 1:
        raise CheckpointError(file, f"num_hidden_layers is {layers!r}; an EAGLE-3 drafter has 1")
    layer_types = layer.get("layer_types")
    sliding = isinstance(layer_types, list) and "sliding_attention" in layer_types
    if sliding or (layer.get("use_sliding_window") and layer.get("sliding_window")):
        raise CheckpointError(file, "the drafter's layer uses sliding-window attention, which is not supported")


class _Reader:
    """Typed look-ups that name the file in every complaint.

    A field may stand at the top, in the layer's object or in `eagle_config`; the first one counts.
    """

    def __init__(self, file: str, top: Json) -> None:
        self.file = file
        self.top = top
        self.layer = self._object("transformer_layer_config", top)
        self._eagle = self._object("eagle_config", {})

    def _object(self, name: str, default: Json) -> Json:
        value = self.top.get(name)
        if value is None:
            return default
        if not isinstance(value, Mapping):
            raise CheckpointError(self.file, f"{name} is {value!r}; it must be an object")
        return value

    def _find(self, name: str) -> object:
        places = (self.top, self.layer, self._eagle)
        return next((place[name] for place in places if place.get(name) is not None), None)

    def size(self, name: str, default: int | None = None) -> int:
        value = self._find(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(self.file, f"{name} is {value!r}; it must be a positive integer")
        return value

    def positive(self, name: str) -> float:
        value = self._find(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise CheckpointError(self.file, f"{name} is {value!r}; it must be a positive number")
        return float(value)

    def switch(self, name: str) -> bool:
        value = self._find(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise CheckpointError(self.file, f"{name} is {value!r}; it must be true or false")
        return value

    def activation(self) -> str:
        value = self._find("hidden_act")
        if value not in (None, "silu"):
            raise CheckpointError(self.file, f"hidden_act {value!r} is not supported; it must be 'silu'")
        return "silu"

    def aux_layer_ids(self) -> tuple[int, int, int] | None:
        """Explicit ids as "inputs of layer i", whichever of the two published conventions they are in.

        vLLM, speculators and NVIDIA count boundaries: id i is the input of layer i, and a list that spells out the
        default begins with 2. SpecForge names the layer whose *output* is taken: each id is one lower, and the
        default begins with 1. No file says which it uses, but only the second kind begins with 1 in practice,
        which is how SGLang tells them apart (sgl-project/sglang#25454).
        """
        ids = self._find("eagle_aux_hidden_state_layer_ids")
        if ids is None:
            return None
        if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
            raise CheckpointError(self.file, f"eagle_aux_hidden_state_layer_ids is {ids!r}; expected layer numbers")
        if len(ids) != AUX_STATES:
            raise CheckpointError(
                self.file, f"eagle_aux_hidden_state_layer_ids names {len(ids)} layers; expected {AUX_STATES}"
            )
        shift = 1 if ids[0] == 1 else 0
        low, mid, high = (one + shift for one in ids)
        return low, mid, high
