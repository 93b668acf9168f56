"""Rotary position embedding of the drafter: read from its own config, evaluated at any position.

The drafter's rotation is its own, never the target's: theta and scaling often differ, and nothing but the
acceptance rate would show a mix-up. There is no precomputed table: a drafter whose `max_position_embeddings`
is smaller than the target's context is evaluated beyond it instead of indexing past an end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from respsd.errors import CheckpointError

logger = logging.getLogger(__name__)

Json = Mapping[str, object]

DEFAULT_THETA = 10_000.0
"""Llama's own, for configs that name none (SafeAILab's first heads)."""
DEFAULT_MAX_POSITIONS = 2048

_REQUIRED_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset({"factor"}),
}
_OPTIONAL_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset(),
    "llama3": frozenset({"original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
_COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotary embedding; `scaling` holds the numbers of its type (default, linear, llama3, yarn)."""

    head_dim: int
    theta: float = DEFAULT_THETA
    rope_type: str = "default"
    scaling: Mapping[str, float] = field(default_factory=dict)
    max_position_embeddings: int = DEFAULT_MAX_POSITIONS
    """Scaling formulas fall back to it where the config names no original length; it limits no position."""


def read_rope_config(config: Json, head_dim: int, file: str) -> RopeConfig:
    """The rotary embedding that a model's config.json describes.

    Reads `rope_theta` with `rope_scaling` (transformers 4) and `rope_parameters` (transformers 5, flat or by
    layer type); a value given in two places must be the same in both. Raises CheckpointError, naming `file`,
    for unknown types, types whose frequencies depend on the sequence's length, and senseless numbers.
    """
    parameters = _parameters(config, file)
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(rope_type, str) or rope_type not in _REQUIRED_KEYS:
        why = "depends on the sequence's length" if rope_type in ("dynamic", "longrope") else "is unknown"
        raise CheckpointError(file, f"rope type {rope_type!r} {why}; supported are {', '.join(_REQUIRED_KEYS)}")

    partial = _agreed("partial_rotary_factor", config, parameters, file)
    if partial not in (None, 1, 1.0):
        raise CheckpointError(file, f"partial_rotary_factor is {partial!r}; a drafter rotates whole heads")
    if head_dim % 2:
        raise CheckpointError(file, f"head_dim {head_dim} is odd; rotary embedding needs pairs")

    theta = _agreed("rope_theta", config, parameters, file)
    max_positions = config.get("max_position_embeddings")
    return RopeConfig(
        head_dim=head_dim,
        theta=DEFAULT_THETA if theta is None else _positive("rope_theta", theta, file),
        rope_type=rope_type,
        scaling=_scaling(rope_type, config, parameters, file),
        max_position_embeddings=(
            DEFAULT_MAX_POSITIONS
            if max_positions is None
            else int(_positive("max_position_embeddings", max_positions, file))
        ),
    )


def inverse_frequencies(config: RopeConfig) -> tuple[Tensor, float]:
    """Radians per position of each pair, float32 [head_dim / 2], and the factor on cos and sin (yarn's)."""
    if config.rope_type == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / (config.theta**exponents), 1.0
    llama = LlamaConfig(
        hidden_size=config.head_dim,
        num_attention_heads=1,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={"rope_type": config.rope_type, "rope_theta": config.theta, **config.scaling},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[config.rope_type](llama)
    return frequencies, float(factor)


class RotaryEmbedding:
    """cos and sin at any position, half-split as Llama's: dimensions i and i + head_dim / 2 are a pair."""

    def __init__(self, config: RopeConfig, device: torch.device | str) -> None:
        frequencies, self._factor = inverse_frequencies(config)
        self._frequencies = torch.cat((frequencies, frequencies)).to(device)  # [head_dim]

    def cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin, each [n, head_dim], for absolute `positions` (int64 [n]); computed in float32."""
        angles = positions[:, None].float() * self._frequencies  # [n, head_dim]
        return (angles.cos() * self._factor).to(dtype), (angles.sin() * self._factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [..., n, head_dim] turned by the angles whose cos and sin [n, head_dim] `RotaryEmbedding` gives."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _parameters(config: Json, file: str) -> Json:
    """The one rope dictionary of the config, wherever it stands; empty where there is none."""
    found = {name: config[name] for name in ("rope_parameters", "rope_scaling") if config.get(name)}
    for name, value in found.items():
        if not isinstance(value, Mapping):
            raise CheckpointError(file, f"{name} is {value!r}; it must be an object")
    places = [_of_layer(value, config, file) for value in found.values() if isinstance(value, Mapping)]
    if len(places) == 2 and _comparable(places[0]) != _comparable(places[1]):
        raise CheckpointError(file, "rope_parameters and rope_scaling contradict each other")
    return places[0] if places else {}


def _of_layer(parameters: Json, config: Json, file: str) -> Json:
    """Transformers 5 nests the parameters by layer type where layers differ; a drafter has one layer."""
    nested = {name: value for name, value in parameters.items() if isinstance(value, Mapping)}
    if not nested:
        return parameters
    layer_types = config.get("layer_types")
    name = layer_types[0] if isinstance(layer_types, list) and layer_types else "full_attention"
    if len(nested) == 1:
        return next(iter(nested.values()))
    if name not in nested:
        raise CheckpointError(file, f"rope_parameters has {sorted(nested)}, the drafter's layer is of type {name!r}")
    return nested[name]


def _comparable(parameters: Json) -> dict[str, object]:
    """A rope dictionary without theta, which rope_scaling never held, with the type under its new name."""
    rest = {name: value for name, value in parameters.items() if name not in ("rope_theta", "type")}
    return rest | {"rope_type": parameters.get("rope_type") or parameters.get("type") or "default"}


def _agreed(name: str, config: Json, parameters: Json, file: str) -> object:
    """A value that may stand beside the rope dictionary or in it; None where in neither."""
    outside, inside = config.get(name), parameters.get(name)
    if outside is not None and inside is not None and outside != inside:
        raise CheckpointError(file, f"{name} is {outside!r}, but {inside!r} in the rope parameters")
    return inside if outside is None else outside


def _scaling(rope_type: str, config: Json, parameters: Json, file: str) -> dict[str, float]:
    """The numbers that `rope_type` uses, checked."""
    required, optional = _REQUIRED_KEYS[rope_type], _OPTIONAL_KEYS[rope_type]
    missing = sorted(name for name in required if parameters.get(name) is None)
    if missing:
        raise CheckpointError(file, f"rope type {rope_type!r} lacks {', '.join(missing)}")
    unused = set(parameters) - required - optional - _COMMON_KEYS
    if unused:
        logger.warning("%s: rope type %r does not use %s", file, rope_type, ", ".join(sorted(unused)))

    scaling: dict[str, float] = {}
    for name in sorted(required | optional):
        # Phi and others write the original length beside the rope dictionary
        is_length = name == "original_max_position_embeddings"
        value = _agreed(name, config, parameters, file) if is_length else parameters.get(name)
        if isinstance(value, bool) and name == "truncate":
            scaling[name] = value
        elif value is not None:
            number = _positive(name, value, file)
            scaling[name] = int(number) if is_length else number
    if rope_type == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise CheckpointError(file, "rope type 'llama3' needs low_freq_factor below high_freq_factor")
    return scaling


def _positive(name: str, value: object, file: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(file, f"{name} is {value!r}; it must be a positive number")
    return float(value)
