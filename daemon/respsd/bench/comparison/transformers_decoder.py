"""transformers' own `generate` as a method: plain with its KV cache, with an assistant model, or by prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from respsd.bench.comparison.answers import Answer, Batch, Delivery, Stopwatch, TokenIds, now


@dataclass(frozen=True, slots=True)
class TransformersModels:
    """What transformers decodes with; plain values, so that another process can load it."""

    target: Path
    dtype: torch.dtype
    device: str
    eos_token_ids: tuple[int, ...]
    assistant: Path | None = None


@dataclass(frozen=True, slots=True)
class Drafting:
    """How transformers speculates."""

    assisted: bool = False
    prompt_lookup_tokens: int | None = None


PLAIN = Drafting()


class TransformersDecoder:
    """Greedy decoding by an unmodified model."""

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_ids: Sequence[int],
        assistant: PreTrainedModel | None = None,
    ) -> None:
        self._model = model.requires_grad_(False)
        self._assistant = assistant
        self._eos_token_ids = list(eos_token_ids)

    @classmethod
    def load(cls, models: TransformersModels) -> TransformersDecoder:
        """Load the checkpoints with transformers' default attention."""

        def load(folder: Path) -> PreTrainedModel:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=models.dtype, local_files_only=True)
            model.train(mode=False)
            return cast("PreTrainedModel", torch.nn.Module.to(model, torch.device(models.device)))

        return cls(
            load(models.target),
            models.eos_token_ids,
            None if models.assistant is None else load(models.assistant),
        )

    @torch.inference_mode()
    def decode(
        self, prompts: Sequence[TokenIds], max_new_tokens: int, *, ignore_eos: bool, drafting: Drafting = PLAIN
    ) -> Batch:
        """See `Decoder.decode`. Several prompts are one batch, padded on the left."""
        longest = max(map(len, prompts))
        padding = self._eos_token_ids[0] if self._eos_token_ids else 0
        ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        seen = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        started = now()
        watch = _BatchWatch(started, len(prompts))
        generate = cast("Callable[..., object]", self._model.generate)
        generate(
            torch.tensor(ids, device=self._model.device),
            attention_mask=torch.tensor(seen, device=self._model.device),
            # A new one: the checkpoint's own may sample or punish repetition.
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=None if ignore_eos else self._eos_token_ids or None,
                pad_token_id=padding,
                prompt_lookup_num_tokens=drafting.prompt_lookup_tokens,
            ),
            assistant_model=self._assistant if drafting.assisted else None,
            streamer=watch,
        )
        stops = frozenset() if ignore_eos else frozenset(self._eos_token_ids)
        return Batch(tuple(_cut(answer, stops, max_new_tokens) for answer in watch.answers()))


class _BatchWatch(BaseStreamer):
    """Takes the tokens of all rows as `generate` puts them out: the prompts first, then a token of each row a step.

    A single row that is drafted for may get several tokens in a step.
    """

    def __init__(self, started: float, rows: int) -> None:
        self._watches = [Stopwatch(started) for _ in range(rows)]
        self._prompts_seen = False

    def put(self, value: Tensor) -> None:
        """:param value: int64 [rows, prompt] first, then [rows] or [1, tokens]."""
        if not self._prompts_seen:
            self._prompts_seen = True
            return
        rows = value.reshape(len(self._watches), -1).tolist()
        for watch, token_ids in zip(self._watches, rows, strict=True):
            watch.deliver(token_ids)

    def end(self) -> None:
        """Nothing is held back."""

    def answers(self) -> list[Answer]:
        """What came, with what the rows were padded with behind their ends."""
        return [watch.answer() for watch in self._watches]


def _cut(answer: Answer, stops: frozenset[int], budget: int) -> Answer:
    """Keep the tokens up to the first end token and the budget.

    A row that ended is padded while others go on, and drafted tokens may go beyond either end.
    """
    end = next((place + 1 for place, token in enumerate(answer.token_ids) if token in stops), len(answer.token_ids))
    left = min(end, budget)
    token_ids, deliveries = answer.token_ids[:left], []
    for delivery in answer.deliveries:
        if left > 0:
            deliveries.append(Delivery(delivery.seconds, min(left, delivery.tokens)))
        left -= delivery.tokens
    return Answer(token_ids, tuple(deliveries))
