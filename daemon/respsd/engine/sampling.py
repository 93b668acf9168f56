"""Which token the target says at a node: processors on the node's own path, then the best of logits plus noise.

The token at absolute position t is a function of the target's logits there, the tokens before it, the request's seed
and t. It does not depend on the draft tree, the batch or the step's size, so speculation changes no output. Taking the
best of logits / temperature + Gumbel noise draws exactly from the processed distribution (see `noise`); greedy
decoding is the same without noise.

All of this runs on the processor, on one row at a time and only for the nodes that the walk visits: a step draws one
token for each token that it commits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from respsd.engine.history import History, needs_history
from respsd.engine.noise import FloatArray, gumbel_of, random_words
from respsd.engine.request import SamplingParams, StoppingParams
from respsd.engine.truncation import IdArray, candidates
from respsd.errors import EngineFault, InvalidRequest


def argmax_rows(logits: Tensor) -> Tensor:
    """The best token of each row of [nodes, vocab], int64 [nodes]: the lower id on ties, -1 where a row holds NaN."""
    best = logits.max(dim=-1)
    return torch.where(best.values.isfinite(), best.indices, -1)


class Sampler:
    """Draws one request's tokens. It is told of committed tokens once and counts them; a path adds to the counts."""

    def __init__(
        self,
        params: SamplingParams,
        stopping: StoppingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        eos_token_ids: Collection[int],
    ) -> None:
        """Raises InvalidRequest for a logit bias on an id that is not in the vocabulary."""
        self._params = params
        self._vocab_size = vocab_size
        self._bias_ids, self._bias = _bias(params, vocab_size)
        self._min_new_tokens = stopping.min_new_tokens
        endings = {*stopping.stop_token_ids, *(() if stopping.ignore_eos else eos_token_ids)}
        self._endings = np.array(sorted(one for one in endings if 0 <= one < vocab_size), dtype=np.intp)
        self._committed = 0
        self._history = History(prompt_ids, vocab_size) if needs_history(params) else None

    @property
    def is_plain_greedy(self) -> bool:
        """Whether every next token is simply the best logit, as `argmax_rows` gives for many nodes at once."""
        adjusted = self._history is not None or self._bias_ids.size or self._committed < self._min_new_tokens
        return self._params.is_greedy and not adjusted

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell of output tokens that are now certain; later paths start after them."""
        self._committed += len(tokens)
        if self._history is not None:
            self._history.commit(tokens)

    def sample(self, logits: Tensor, position: int, path: Sequence[int] = ()) -> int:
        """The target's token at a node.

        :param logits: the target's, [vocab], of any dtype on any device.
        :param position: absolute position of the token that is drawn.
        :param path: output tokens behind the committed ones on the way to it: the node's own path in the tree.
        :raises EngineFault: the target gave NaN, or no token that could be drawn.
        """
        if self.is_plain_greedy:
            highest = logits.max(dim=-1)  # quicker than argmax in bfloat16, and the first of equals too
            if not math.isfinite(highest.values):
                raise EngineFault("the target's logits hold NaN or infinity")
            return int(highest.indices)
        row, best = self._processed(logits, path)
        if self._params.is_greedy:
            return int(row.argmax())
        drawable = candidates(row, best, self._params)
        words = random_words(self._params.seed, position, self._vocab_size)
        noise = gumbel_of(words if drawable.ids is None else words[drawable.ids])
        return drawable.token(int((drawable.scaled + noise).argmax()))

    def distribution(self, logits: Tensor, path: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """The probabilities that `sample` draws from, [vocab]."""
        row, best = self._processed(logits, path)
        probabilities = np.zeros(self._vocab_size)
        if self._params.is_greedy:
            probabilities[row.argmax()] = 1.0
            return probabilities
        drawable = candidates(row, best, self._params)
        weights = np.exp(drawable.scaled.astype(np.float64))
        probabilities[slice(None) if drawable.ids is None else drawable.ids] = weights / weights.sum()
        return probabilities

    def _processed(self, logits: Tensor, path: Sequence[int]) -> tuple[FloatArray, float]:
        """Logits after bias, penalties and min_new_tokens, float32 [vocab], and the best of them."""
        row = self._adjusted(_as_float32(logits), path)
        best = float(row.max())
        if not np.isfinite(best):
            raise EngineFault("the target's logits hold NaN or infinity, or leave no token to draw")
        return row, best

    def _adjusted(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        barred = self._committed + len(path) < self._min_new_tokens
        if self._history is None and not barred and not self._bias_ids.size:
            return row
        row = row.copy()
        row[self._bias_ids] += self._bias
        if self._history is not None:
            self._history.penalise(row, path, self._params)
        if barred:
            row[self._endings] = -np.inf
        return row


def _as_float32(logits: Tensor) -> FloatArray:
    """A row as float32 on the processor, perhaps sharing the tensor's memory.

    torch's conversion wakes all its threads for a vocabulary's length, which costs milliseconds on a busy machine.
    """
    logits = logits.detach().cpu()
    if logits.dtype == torch.bfloat16:  # the upper half of a float32
        return (logits.view(torch.int16).numpy().astype(np.uint32) << np.uint32(16)).view(np.float32)
    return logits.numpy().astype(np.float32, copy=False)


def _bias(params: SamplingParams, vocab_size: int) -> tuple[IdArray, FloatArray]:
    for token_id in params.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest("logit_bias", token_id, f"token ids are 0 to {vocab_size - 1}")
    ids = np.array(list(params.logit_bias.keys()), dtype=np.intp)
    return ids, np.array(list(params.logit_bias.values()), dtype=np.float32)
