"""The drafter in training: its decoder layer unrolled over its own outputs ("training-time test").

Words, beside those of `respsd.engine.drafter`: *step* j of the unrolling drafts j tokens ahead of the last one that
the target has seen. At step j, row t holds the token of position t + 1 + j, its feature (step 0: the target's taps at
t through `fc`; later: the row's own output of step j - 1), and the rotary position t + j; it attends to the step-0
keys of rows up to t, which stand for the committed prefix, and to its own keys of steps 1 to j, which stand for its
ancestors in a draft tree. So row t at step j is exactly what inference computes for the true token at depth j behind
a prefix that ends at t. EAGLE-3 (arXiv 2503.01840), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from respsd.drafter_training.batches import Span, TrainingBatch
from respsd.engine.drafter_config import AUX_STATES, DrafterConfig
from respsd.engine.rope import RotaryEmbedding, rotate
from respsd.errors import CheckpointError

_INIT_STD = 0.02
_ROWS = 256
"""Sizes of a batch's tensors are rounded up to a multiple of this,"""
_SPAN_ROWS = 64
"""and those of one span's attention to one of this.

No batch is as long as another. Without the rounding each one needs kernels of its own, which oneDNN generates anew and
which push one another out of its cache, and buffers of sizes that the heap has none of: steps became twice as slow
within a thousand of them.
"""


class UnrolledDrafter(nn.Module):
    """One EAGLE-3 drafter with float32 master weights; products run in autocast's dtype where it is on."""

    embedding: Tensor
    tap_scale: Tensor

    def __init__(
        self, config: DrafterConfig, embedding: Tensor, draft_head: Tensor, final_norm: Tensor, tap_scale: Tensor
    ) -> None:
        """
        :param embedding: the target's token embeddings [vocab, hidden], frozen.
        :param draft_head: what `lm_head` begins with, [draft vocab, hidden]: the target's head at the draft ids.
        :param final_norm: what `norm` begins with, [hidden]: the target's norm before its head.
        :param tap_scale: [3 * hidden], root mean square of each channel of the taps. They are divided by it before
            `fc`, so that a target's few outlier channels (100 times the rest) do not drown the others; the
            exported `fc.weight` has the division in it.
        """
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        self.fc = nn.Linear(AUX_STATES * config.target_hidden_size, hidden, bias=False)
        self.input_layernorm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.q_proj = nn.Linear(2 * hidden, config.heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.heads * dim, hidden, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.gate_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("tap_scale", tap_scale)
        self._rotary = RotaryEmbedding(config.rope, embedding.device)
        self._initialise(draft_head, final_norm)

    def forward(self, batch: TrainingBatch, steps: int) -> list[Tensor]:
        """Outputs of each step, [rows, hidden] in float32: the drafting rows of all spans in order, then padding."""
        spans, index = batch.spans, RowIndex(batch.spans, batch.tokens.device)
        features = self.fc(batch.taps[index.context] / self.tap_scale).float()  # [context, hidden]
        joined = self._join(batch.tokens[index.context + 1], features)
        keys = self._rotate(self._heads(self.k_proj(joined)), index.places)  # [kv_heads, context, head_dim]
        values = self._heads(self.v_proj(joined))
        rotary = index.places[index.drafting]
        queries = self._rotate(self._heads(self.q_proj(joined[index.drafting])), rotary)  # [heads, rows, head_dim]
        outputs = [self._finish(features[index.drafting], attend(spans, queries, keys, values, [], []))]
        own_keys: list[Tensor] = []
        own_values: list[Tensor] = []
        for step in range(1, steps):
            positions, _ = index.positions(step)
            joined = self._join(batch.tokens[positions], outputs[-1])
            own_keys.append(self._rotate(self._heads(self.k_proj(joined)), rotary + step))
            own_values.append(self._heads(self.v_proj(joined)))
            queries = self._rotate(self._heads(self.q_proj(joined)), rotary + step)
            attended = attend(spans, queries, keys, values, own_keys, own_values)
            outputs.append(self._finish(outputs[-1], attended))
        return outputs

    def normed(self, hidden: Tensor) -> Tensor:
        """What `lm_head` scores."""
        out: Tensor = self.norm(hidden)
        return out

    @torch.no_grad()
    def load_published(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Set weights from a loaded checkpoint (`respsd.engine.checkpoint`'s names); raises CheckpointError."""
        for name, parameter in self.named_parameters():
            module, _, kind = name.rpartition(".")
            found = next(
                tensor
                for key, tensor in tensors.items()
                if key.removesuffix(f".{kind}").rpartition(".")[2] == module and key.endswith(kind)
            )
            if found.shape != parameter.shape:
                raise CheckpointError(source, f"{name} has shape {tuple(found.shape)}, not {tuple(parameter.shape)}")
            parameter.copy_(found.float().to(parameter.device) * (self.tap_scale if module == "fc" else 1.0))

    def _join(self, tokens: Tensor, features: Tensor) -> Tensor:
        embedded = self.input_layernorm(F.embedding(tokens, self.embedding).float())
        return torch.cat((embedded, self.hidden_norm(features)), dim=-1)  # [rows, 2 * hidden]

    def _finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Behind the attention: output projection and MLP, each added to the residual stream."""
        hidden = residual + self.o_proj(attended).float()
        normed = self.post_attention_layernorm(hidden)
        out: Tensor = hidden + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed)).float()
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        """[rows, heads * head_dim] to [heads, rows, head_dim]."""
        return projected.view(projected.shape[0], -1, self.config.head_dim).transpose(0, 1)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, *self._rotary.cos_sin(positions, x.dtype))

    @torch.no_grad()
    def _initialise(self, draft_head: Tensor, final_norm: Tensor) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=_INIT_STD)
        self.lm_head.weight.copy_(draft_head)
        self.norm.weight.copy_(final_norm)


class RowIndex:
    """Where the rows of packed spans find their tokens and labels.

    Behind the spans' rows stand copies of the last one as padding, which count nowhere.
    """

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        self._device = device
        self.context = _padded(_ranges([(span.start, span.start + span.end_row) for span in spans], device))
        """Packed positions of all rows that give keys and values, int64 [context]."""
        self.places = _padded(_ranges([(0, span.end_row) for span in spans], device))
        """The same rows' positions in their sequences, int64 [context]."""
        offsets, offset = [], 0
        for span in spans:
            offsets.append((offset + span.first_row, offset + span.end_row))
            offset += span.end_row
        self.drafting = _padded(_ranges(offsets, device))
        """Which rows of `context` draft, int64 [rows]."""
        rows = _ranges([(span.start + span.first_row, span.start + span.end_row) for span in spans], device)
        counts = torch.tensor([span.end_row - span.first_row for span in spans])
        ends = torch.tensor([span.start + span.end_row for span in spans])
        self._rows, self._last = _padded(rows), _padded(ends.repeat_interleave(counts).to(device))
        self._exists = torch.arange(len(self._rows), device=device) < len(rows)

    def positions(self, step: int) -> tuple[Tensor, Tensor]:
        """Packed position of each row's token at a step, which is also its label's; and whether it exists.

        Rows whose token would lie behind the sequence's end repeat its last one: they cost little, and every step has
        the same rows.
        """
        wanted = self._rows + 1 + step
        return torch.minimum(wanted, self._last), (wanted <= self._last) & self._exists


def attend(
    spans: Sequence[Span],
    queries: Tensor,  # [heads, rows, head_dim]
    keys: Tensor,  # [kv_heads, context, head_dim], step 0
    values: Tensor,
    own_keys: Sequence[Tensor],  # each [kv_heads, rows, head_dim], steps 1 to j
    own_values: Sequence[Tensor],
) -> Tensor:
    """Attention of one step, span by span; returns [rows, heads * head_dim], with zeros for the padding."""
    rows = [span.end_row - span.first_row for span in spans]
    seen = [span.end_row for span in spans]
    padding = queries.shape[1] - sum(rows)
    rows.append(padding)
    seen.append(keys.shape[1] - sum(seen))
    # Split at once: the gradient of a slice is a whole tensor of zeros, which a slice for each span would add up.
    own = [[each.split(rows, dim=1) for each in kind] for kind in (own_keys, own_values)]  # [kind][step][span]
    parts = zip(queries.split(rows, dim=1), keys.split(seen, dim=1), values.split(seen, dim=1), strict=True)
    attended = [
        _attend_span(span.first_row, *part, *([step[number] for step in kind] for kind in own))
        for number, (span, part) in enumerate(zip(spans, parts, strict=False))  # the last part is padding
    ]
    return torch.cat([*attended, attended[0].new_zeros(padding, attended[0].shape[1])])


def _attend_span(
    first_row: int,
    queries: Tensor,  # [heads, rows, head_dim]
    keys: Tensor,  # [kv_heads, seen, head_dim]
    values: Tensor,
    own_keys: Sequence[Tensor],  # each [kv_heads, rows, head_dim]
    own_values: Sequence[Tensor],
) -> Tensor:
    existing = queries.shape[1]
    queries, *own = (_padded_span(each) for each in (queries, *own_keys, *own_values))
    own_keys, own_values = own[: len(own_keys)], own[len(own_keys) :]
    keys, values = _padded_span(keys), _padded_span(values)  # behind the last row, so hidden from those that exist
    heads, rows, dim = queries.shape
    kv_heads, seen = keys.shape[:2]
    group = heads // kv_heads
    row_places = first_row + torch.arange(rows, device=queries.device)
    hidden = torch.arange(seen, device=queries.device) > row_places[:, None]  # [rows, seen]
    if not own_keys:
        out = F.scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=~hidden, enable_gqa=True
        )
        return out[0].transpose(0, 1).reshape(rows, heads * dim)[:existing]
    grouped = queries.reshape(kv_heads, group, rows, dim) * dim**-0.5
    prefix = (grouped.reshape(kv_heads, group * rows, dim) @ keys.transpose(1, 2)).float()  # [kv_heads, g * rows, seen]
    prefix = prefix.view(kv_heads, group, rows, seen).masked_fill(hidden, float("-inf"))
    ancestors = torch.stack([(grouped * each[:, None]).sum(dim=-1) for each in own_keys], dim=-1).float()
    weights = torch.cat((prefix, ancestors), dim=-1).softmax(dim=-1).to(values.dtype)  # [kv_heads, g, rows, seen + j]
    to_prefix, *to_own = weights.split([seen, *[1] * len(own_values)], dim=-1)  # likewise one gradient for all
    attended: Tensor = (to_prefix.reshape(kv_heads, group * rows, seen) @ values).view(kv_heads, group, rows, dim)
    for weight, each in zip(to_own, own_values, strict=True):
        attended = attended + weight * each[:, None]
    return attended.reshape(heads, rows, dim).transpose(0, 1).reshape(rows, heads * dim)[:existing]


def _padded_span(x: Tensor) -> Tensor:
    """[heads, rows, head_dim] with zeros up to the next multiple of _SPAN_ROWS rows."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % _SPAN_ROWS))


def _padded(index: Tensor) -> Tensor:
    """[rows] with its last entry again up to the next multiple of _ROWS."""
    return torch.cat((index, index[-1:].expand(-len(index) % _ROWS)))


def _ranges(bounds: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(first, end) for first, end in bounds]).to(device)
