"""The draft vocabulary: the tokens that the target says most, which are all that a drafter can propose."""

from __future__ import annotations

from torch import Tensor

from respsd.errors import InvalidRequest


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """Ids of the `size` most frequent tokens (the lower id where counts are equal), ascending, int64 [size].

    `counts` is int64 [vocab], how often each token stands in the answers. Raises InvalidRequest where fewer different
    ones do: ids that were never seen would be dead weight.
    """
    distinct = int((counts > 0).sum())
    if not 0 < size <= distinct:
        raise InvalidRequest("draft vocabulary", size, f"the answers hold {distinct} different tokens, at most")
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def coverage(counts: Tensor, ids: Tensor) -> float:
    """Share of the answers' tokens that the draft vocabulary has."""
    return float(counts[ids].sum() / counts.sum().clamp(min=1))
