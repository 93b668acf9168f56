"""The target: a Hugging Face causal LM, one packed forward for the new rows of many sequences.

Its own code runs unmodified, or on a processor, where its layers are of a known kind, as a `LeanDecoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from respsd.engine import attention, lean_decoder
from respsd.engine.attention import PackedSegment, plain_segment
from respsd.engine.exact_attention import exact_segment
from respsd.engine.kv_cache import KvLayout, SequenceCache
from respsd.engine.lean_decoder import LeanDecoder
from respsd.engine.packed_linear import PackedLinear, make_kernels
from respsd.engine.target_weights import Packing, pack_linears
from respsd.errors import CheckpointError

_UNBOUNDED = 1 << 62
_PROBE_ROWS = 12
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Of the largest logit. Sums in another order differ by a tenth of it; another architecture by all of it."""
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows of one sequence for a forward: tokens that follow `cache.length` committed ones."""

    cache: SequenceCache
    tokens: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows], absolute
    visible: Tensor | None  # bool [rows, rows]: may row i see row j; None where there is one row
    scored: Tensor  # int64 [scored]: rows whose logits are wanted
    causal: bool = False  # each row sees the ones before it, as `visible` says too


def causal_rows(cache: SequenceCache, tokens: Sequence[int], *, scored: int) -> Rows:
    """A plain run of tokens behind the cache's prefix, each seeing those before it; the last `scored` get logits."""
    device, count = cache.data.device, len(tokens)
    return Rows(
        cache=cache,
        tokens=torch.tensor(tokens, device=device),
        positions=torch.arange(cache.length, cache.length + count, device=device),
        visible=torch.ones((count, count), dtype=torch.bool, device=device).tril() if count > 1 else None,
        scored=torch.arange(count - scored, count, device=device),
        causal=True,
    )


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one sequence gets back from a forward."""

    logits: Tensor  # [scored, vocab]
    features: Tensor  # [rows, 3 * hidden]: inputs of layers 2, L // 2 and L - 3, low | mid | high


class Target:
    """A loaded model with the project's attention, its feature taps and its KV layout."""

    def __init__(self, model: PreTrainedModel, *, packed_weights: bool | None = False, exact: bool = False) -> None:
        """Take a loaded model over.

        :param packed_weights: lay linear weights out for the processor's kernels; None: within a bound of memory.
        :param exact: a row's numbers do not depend on the rows beside it, so that verifying a tree and decoding
            plainly agree bit for bit in every number format.
        """
        attention.register()
        model.set_attn_implementation(attention.NAME)
        model.train(mode=False)
        self._model = model.requires_grad_(False)
        config = model.config.get_text_config()
        self.config = config
        self.vocab_size = int(config.vocab_size)
        self.hidden_size = int(config.hidden_size)
        self.context_length = _context_length(config)
        layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_dim = int(getattr(config, "head_dim", None) or self.hidden_size // heads)
        self.group = heads // kv_heads
        self.layout = KvLayout(layers, kv_heads, head_dim, model.dtype, model.device)
        self.exact = exact
        self.packing: Packing | None = None
        self._lean: LeanDecoder | None = None
        self._taps: dict[int, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self.tap(default_feature_layers(layers))
        if exact or packed_weights is not False:
            self._lay_out_weights(packed_weights, exact=exact)

    @classmethod
    def load(
        cls,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        packed_weights: bool | None = False,
        exact: bool = False,
    ) -> Target:
        """Load a checkpoint folder; raise CheckpointError where this engine cannot run it losslessly.

        `packed_weights` and `exact` are those of the constructor.
        """
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            _check_rope(config.get_text_config(), str(folder / "config.json"))
            attention.register()
            model = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, local_files_only=True, attn_implementation=attention.NAME
            )
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(str(folder), str(error)) from error
        placed = cast("PreTrainedModel", nn.Module.to(model, device))
        return cls(placed, packed_weights=packed_weights, exact=exact)

    @property
    def is_lean(self) -> bool:
        """Whether the forward is `LeanDecoder`'s in place of transformers' own."""
        return self._lean is not None

    @property
    def embedding(self) -> Tensor:
        """Token embeddings, [vocab, hidden]: what a drafter without its own uses."""
        embedding = self._model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding.weight.detach()

    def forward(self, batch: Sequence[Rows]) -> list[TargetOutput]:
        """Run the new rows of all sequences in one packed forward; their KV becomes scratch behind each prefix."""
        segments: list[PackedSegment] = []
        scored: list[Tensor] = []
        start = 0
        for rows in batch:
            count = rows.tokens.shape[0]
            segments.append(self._segment(rows, slice(start, start + count)))
            scored.append(rows.scored + start if start else rows.scored)
            start += count
        logits, features = self.run(
            _pack([rows.tokens for rows in batch]), _pack([rows.positions for rows in batch]), segments, _pack(scored)
        )
        outputs, first = [], 0
        for rows, segment in zip(batch, segments, strict=True):
            last = first + rows.scored.shape[0]
            outputs.append(TargetOutput(logits[first:last], features[segment.rows]))
            first = last
        return outputs

    def run(
        self, tokens: Tensor, positions: Tensor, segments: Sequence[PackedSegment], scored: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run rows that segments attend for: logits, [scored, vocab], and features, [rows, 3 * hidden].

        :param tokens: int64 [rows], as are the absolute `positions`.
        :param scored: int64 [scored], rows whose logits are wanted; None: all.
        """
        if self._lean is not None:
            logits, taps = self._lean(tokens, positions, segments, scored, self.feature_layers)
            return logits, torch.cat([taps[layer] for layer in self.feature_layers], dim=-1)
        logits = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if scored is None else scored,
            segments=segments,
        ).logits[0]
        return logits, torch.cat([self._taps[layer][0] for layer in self.feature_layers], dim=-1)

    def _segment(self, rows: Rows, place: slice) -> PackedSegment:
        cache = rows.cache
        if self.exact:
            return exact_segment(cache, place, None if rows.causal else rows.visible)
        return plain_segment(cache, place, rows.visible, self.group)

    def _lay_out_weights(self, packed_weights: bool | None, *, exact: bool) -> None:
        if self.layout.device.type != "cpu" and not exact:
            return
        runs_lean = packed_weights is not False and self.layout.device.type == "cpu" and lean_decoder.takes(self._model)
        if runs_lean:
            expected = self._probe()
            lean_decoder.join_weights(self._model)
        self.packing = pack_linears(
            self._model, exact=exact, spare_bytes=None if packed_weights is None else _UNBOUNDED
        )
        if runs_lean:
            self._lean = LeanDecoder(self._model)
            self._check_same(expected, self._probe())

    def _check_same(self, expected: Tensor, found: Tensor) -> None:
        """Raise CheckpointError where the lean forward's logits, [rows, vocab], are not the model's own."""
        largest, most = float(expected.abs().max()), _PROBE_TOLERANCE[self.layout.dtype]
        difference = float((found - expected).abs().max()) / max(largest, 1e-30)
        if not difference <= most:  # NaN is none
            fault = (
                f"{type(self._model).__name__} computes other logits than its layers' class stands for (off by "
                f"{difference:.2g} of the largest, at most {most} is rounding); engine.packed_weights = off serves it"
            )
            raise CheckpointError(str(self.config.name_or_path), fault)

    @torch.inference_mode()
    def _probe(self) -> Tensor:
        """Logits of a few arbitrary tokens, float32 [rows, vocab]."""
        tokens = [37 * (1 + number) % self.vocab_size for number in range(_PROBE_ROWS)]
        rows = causal_rows(SequenceCache(self.layout, _PROBE_ROWS), tokens, scored=_PROBE_ROWS)
        return self.forward([rows])[0].logits.float()

    def make_kernels(self) -> None:
        """See `packed_linear.make_kernels`."""
        forwards = (module.forward for module in self._model.modules())
        make_kernels(forward for forward in forwards if isinstance(forward, PackedLinear))

    def tap(self, layers: tuple[int, int, int]) -> None:
        """Take the features from the inputs of these layers (0-based), low | mid | high."""
        for hook in self._hooks:
            hook.remove()
        self.feature_layers = layers
        modules = self._model.get_decoder().layers
        self._hooks = [
            modules[index].register_forward_pre_hook(partial(self._keep, index), with_kwargs=True)
            for index in set(layers)
        ]

    def _keep(self, index: int, _module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        assert isinstance(hidden, Tensor)  # [1, rows, hidden]
        self._taps[index] = hidden


def default_feature_layers(layers: int) -> tuple[int, int, int]:
    """EAGLE-3's taps: the inputs of layers 2, L // 2 and L - 3 (0-based); as near as a very small model comes."""
    return (min(2, layers - 1), layers // 2, max(0, layers - 3))


def _pack(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _context_length(config: PreTrainedConfig) -> int:
    """Positions that full attention serves exactly: within a sliding window it equals the windowed one."""
    length = int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return length
    return min(length, int(window))


def _check_rope(config: PreTrainedConfig, file: str) -> None:
    """Refuse rotary scaling that depends on the longest position in the batch: outputs would depend on batch mates."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        raise CheckpointError(file, "the target has no rotary position parameters; only rotary models are served")
    kind = str(parameters.get("rope_type", "default"))
    if kind in _LENGTH_DEPENDENT_ROPE:
        raise CheckpointError(file, f"rope_type {kind!r} changes with the length of the batch; it is not supported")
