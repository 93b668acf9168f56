"""Log-probabilities of tokens, for requests that ask for them: what the target itself says, before any processor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from respsd.engine.events import TokenLogProb
from respsd.errors import EngineFault

SCORED_ROWS = 128
"""Rows that are scored at once, which bounds the memory for their float32 distributions."""

Top = tuple[tuple[int, float], ...]


def score(logits: Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogProb, ...]:
    """Log-probs of some tokens, each under its own row.

    :param logits: [tokens, vocab], the target's, of any dtype on any device.
    :param top: most probable tokens that are told of each row, at most the vocabulary.
    :raises EngineFault: the target gave NaN or positive infinity.
    """
    if not tokens:
        return ()
    log_probs = torch.log_softmax(logits.float(), dim=-1)  # [tokens, vocab]
    places = torch.tensor(tokens, device=logits.device)[:, None]
    own = log_probs.gather(1, places)[:, 0].tolist()
    if any(math.isnan(each) for each in own):
        raise EngineFault("the target's logits hold NaN or infinity")
    best = _best(log_probs, min(top, log_probs.shape[1])) if top else [()] * len(tokens)
    return tuple(
        TokenLogProb(token, log_prob, ranked) for token, log_prob, ranked in zip(tokens, own, best, strict=True)
    )


def _best(log_probs: Tensor, count: int) -> list[Top]:
    """The `count` best of each row, the best first; of equals the lower ids, which `topk` does not promise."""
    least = log_probs.topk(count, dim=-1).values[:, -1:]
    at_least = log_probs >= least
    rows, ids = at_least.nonzero().cpu().numpy().T  # rising, ties of the last place included
    values = log_probs[at_least].cpu().numpy()
    order = np.lexsort((ids, -values, rows))
    firsts = np.searchsorted(rows, np.arange(log_probs.shape[0]))
    return [
        tuple((int(ids[place]), float(values[place])) for place in order[first : first + count]) for first in firsts
    ]
