"""Generating many answers at once: a fixed set of slots, refilled with new prompts as answers end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from respsd.drafter_training import slot_attention
from respsd.drafter_training.slot_attention import Decode, Prefill, SlotCache
from respsd.engine.kv_cache import KvLayout
from respsd.errors import CheckpointError, InvalidRequest

_PREFILL_BATCH = 8
"""Prompts that are read together. Their logits are computed for each at every last position of the batch, so the
head's cost grows with the square of it."""


@dataclass(slots=True)
class Job:
    """One prompt that is to be answered; `answer_ids` grows until it is done."""

    prompt_ids: list[int]
    temperature: float
    tag: int
    """The caller's number for it."""
    answer_ids: list[int] = field(default_factory=list)


def load_generation_model(folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The target with the slot attention; raises CheckpointError."""
    slot_attention.register()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, attn_implementation=slot_attention.NAME
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(str(folder), str(error)) from error
    loaded: PreTrainedModel = model.to(device)  # type: ignore[arg-type]  # transformers wraps it without types
    loaded.eval().requires_grad_(False)
    return loaded


def check_context(model: PreTrainedModel, field: str, tokens: int) -> None:
    """Raise InvalidRequest where the model's context cannot hold the tokens that `field` asks for."""
    context = int(model.config.get_text_config().max_position_embeddings)
    if tokens > context:
        raise InvalidRequest(field, tokens, f"the target's context holds {context}")


class BatchedGenerator:
    """Continuous batching without speculation: throughput of all answers together is what counts."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        capacity: int,
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        seed: int,
    ) -> None:
        """:param capacity: tokens of the longest prompt with its answer."""
        self._model = model
        self._device = model.device
        self._cache = SlotCache(layout_of(model), slots, capacity)
        self._max_new_tokens = max_new_tokens
        self._eos = frozenset(eos_token_ids)
        self._random = torch.Generator(self._device).manual_seed(seed)
        self._jobs: list[Job | None] = [None] * slots
        self._lengths = torch.zeros(slots, dtype=torch.int64)  # committed tokens of each slot

    @torch.inference_mode()
    def run(self, queue: deque[Job]) -> Iterator[Job]:
        """Answer jobs from the queue, which the caller may extend meanwhile; yields each job when it is done."""
        while queue or any(self._jobs):
            free = [slot for slot, job in enumerate(self._jobs) if job is None]
            # Waiting for a whole batch of free slots keeps prefill efficient; an idle machine does not wait.
            while queue and free and (len(free) >= _PREFILL_BATCH or not any(self._jobs)):
                count = min(_PREFILL_BATCH, len(free), len(queue))
                yield from self._prefill(free[:count], [queue.popleft() for _ in range(count)])
                free = [slot for slot, job in enumerate(self._jobs) if job is None]
            if any(self._jobs):
                yield from self._decode()

    def _prefill(self, slots: list[int], jobs: list[Job]) -> list[Job]:
        lengths = torch.tensor([len(job.prompt_ids) for job in jobs])
        ids = torch.zeros((len(jobs), int(lengths.max())), dtype=torch.int64)
        for row, job in enumerate(jobs):
            ids[row, : lengths[row]] = torch.tensor(job.prompt_ids)
        running = [int(self._lengths[slot]) for slot, job in enumerate(self._jobs) if job is not None]
        self._cache.fit(max(ids.shape[1], *running) if running else ids.shape[1])
        last = (lengths - 1).to(self._device)
        logits = self._model(
            input_ids=ids.to(self._device),
            position_ids=torch.arange(ids.shape[1], device=self._device)[None].expand_as(ids),
            use_cache=False,
            logits_to_keep=last,
            slot_batch=Prefill(self._cache, torch.tensor(slots, device=self._device)),
        ).logits  # [batch, batch, vocab]: row i at every row's last position
        for slot, job, length in zip(slots, jobs, lengths.tolist(), strict=True):
            self._jobs[slot] = job
            self._lengths[slot] = length
        own = torch.arange(len(jobs), device=self._device)
        return self._take(slots, logits[own, own])

    def _decode(self) -> list[Job]:
        rows = max(slot for slot, job in enumerate(self._jobs) if job is not None) + 1
        # An empty slot below computes too, at position 0: its row is thrown away.
        tokens = torch.tensor([[job.answer_ids[-1] if job else 0] for job in self._jobs[:rows]])
        positions = torch.where(torch.tensor([job is not None for job in self._jobs[:rows]]), self._lengths[:rows], 0)
        self._cache.fit(int(positions.max()) + 1)
        hidden = torch.arange(self._cache.room) > positions[:, None]  # [rows, room]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        logits = self._model(
            input_ids=tokens.to(self._device),
            position_ids=positions[:, None].to(self._device),
            use_cache=False,
            slot_batch=Decode(self._cache, positions.to(self._device), mask[:, None].to(self._device)),
        ).logits[:, 0]  # [rows, vocab]
        active = [slot for slot in range(rows) if self._jobs[slot] is not None]
        self._lengths[active] += 1
        return self._take(active, logits[active])

    def _take(self, slots: list[int], logits: Tensor) -> list[Job]:
        """Give each slot its next token; returns the jobs that this finished, whose slots are free again."""
        finished = []
        for slot, token in zip(slots, self._sample(slots, logits).tolist(), strict=True):
            job = self._jobs[slot]
            assert job is not None
            job.answer_ids.append(token)
            if token in self._eos or len(job.answer_ids) >= self._max_new_tokens:
                finished.append(job)
                self._jobs[slot] = None
        return finished

    def _sample(self, slots: list[int], logits: Tensor) -> Tensor:
        """The most probable token, or one by inverse CDF where the job's temperature is not 0; int64 [slots]."""
        chosen = logits.max(dim=-1).indices  # argmax is five times slower on a CPU
        temperatures = [job.temperature for slot in slots if (job := self._jobs[slot]) is not None]
        sampled = [row for row, temperature in enumerate(temperatures) if temperature > 0]
        if sampled:
            scale = torch.tensor([[temperatures[row]] for row in sampled], device=self._device)
            cumulative = (logits[sampled].float() / scale).softmax(dim=-1).cumsum(dim=-1)
            uniform = torch.rand((len(sampled), 1), generator=self._random, device=self._device)
            drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
            chosen[sampled] = drawn.clamp_(max=logits.shape[-1] - 1)
        return chosen


def layout_of(model: PreTrainedModel) -> KvLayout:
    """The shape of a model's keys and values."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    return KvLayout(
        layers=int(config.num_hidden_layers),
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or int(config.hidden_size) // heads),
        dtype=model.dtype,
        device=model.device,
    )
