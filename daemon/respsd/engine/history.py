"""A request's tokens so far, as penalties see them: counted once when committed, a node's path added for one look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from respsd.engine.noise import FloatArray
from respsd.engine.request import SamplingParams


def needs_history(params: SamplingParams) -> bool:
    """Whether any penalty acts."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


class History:
    """Which tokens are in the prompt, and how often each is in the output."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._in_prompt = np.zeros(vocab_size, dtype=np.bool_)
        self._in_prompt[list(prompt_ids)] = True
        self._counts = np.zeros(vocab_size, dtype=np.float32)  # occurrences in the output

    def commit(self, tokens: Sequence[int]) -> None:
        """Add output tokens."""
        np.add.at(self._counts, list(tokens), 1.0)

    def penalise(self, row: FloatArray, path: Sequence[int], params: SamplingParams) -> None:
        """Change a row of logits in place, by the committed tokens and those of `path`.

        First the repetition penalty, on every token of prompt and output (CTRL, arXiv 1909.05858, as transformers does
        it: positive logits are divided, negative ones multiplied); then OpenAI's, on the output only: `presence` once
        for each token that occurs, `frequency` for each occurrence.
        """
        counts = self._counts
        if path:
            counts = counts.copy()
            np.add.at(counts, list(path), 1.0)
        if params.repetition_penalty != 1.0:
            seen = np.flatnonzero(self._in_prompt | (counts > 0))
            penalty, logits = np.float32(params.repetition_penalty), row[seen]
            row[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
        if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            seen = np.flatnonzero(counts)
            row[seen] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts[seen]
