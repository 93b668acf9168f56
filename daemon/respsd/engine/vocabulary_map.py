"""Draft vocabulary to target vocabulary.

A drafter scores a reduced vocabulary. Its checkpoint holds `d2t`, one *offset* for each draft id (the target id is
`i + d2t[i]`), and usually `t2d`, a mask over the target's ids that is true where a draft id exists. A wrong map breaks
nothing visibly, every draft is just refused; so all that can be checked is checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from respsd.errors import CheckpointError


def draft_to_target_ids(
    d2t: Tensor | None, t2d: Tensor | None, draft_vocab_size: int, vocab_size: int, file: str
) -> Tensor:
    """The target id of each draft id, int64 [draft vocabulary].

    Without `d2t` the vocabularies must be the same size and the map is the identity (full-vocabulary heads leave it
    out). Raises CheckpointError, naming `file`, where the map is missing, all zeros, out of range, not one to one, or
    another set of ids than `t2d`.
    """
    if draft_vocab_size > vocab_size:
        raise CheckpointError(file, f"draft vocabulary {draft_vocab_size} exceeds the vocabulary {vocab_size}")
    if d2t is None:
        if draft_vocab_size < vocab_size:
            raise CheckpointError(
                file,
                f"d2t is missing, and the draft vocabulary has {draft_vocab_size} of {vocab_size} tokens",
            )
        target_ids = torch.arange(vocab_size)
    else:
        target_ids = _from_offsets(d2t, draft_vocab_size, vocab_size, file)
    if t2d is not None:
        _check_mask(t2d, target_ids, vocab_size, file)
    return target_ids


def _from_offsets(d2t: Tensor, draft_vocab_size: int, vocab_size: int, file: str) -> Tensor:
    if tuple(d2t.shape) != (draft_vocab_size,) or d2t.dtype not in (torch.int64, torch.int32):
        raise CheckpointError(file, f"d2t is {d2t.dtype} {tuple(d2t.shape)}; expected integers ({draft_vocab_size},)")
    offsets = d2t.long()
    if draft_vocab_size < vocab_size and not offsets.any():
        raise CheckpointError(
            file, "d2t is all zeros: the map was never filled in, since a reduced vocabulary skips ids"
        )
    target_ids = torch.arange(draft_vocab_size) + offsets
    outside = ((target_ids < 0) | (target_ids >= vocab_size)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise CheckpointError(
            file,
            f"d2t[{at}] = {int(offsets[at])}, an offset, maps draft id {at} to {int(target_ids[at])}, "
            f"outside 0..{vocab_size - 1}",
        )
    uses = torch.bincount(target_ids, minlength=vocab_size)
    if int(uses.max()) > 1:
        raise CheckpointError(file, f"d2t maps {int(uses.max())} draft ids to target id {int(uses.argmax())}")
    return target_ids


def _check_mask(t2d: Tensor, target_ids: Tensor, vocab_size: int, file: str) -> None:
    if tuple(t2d.shape) != (vocab_size,) or t2d.dtype.is_floating_point:
        raise CheckpointError(file, f"t2d is {t2d.dtype} {tuple(t2d.shape)}; expected booleans ({vocab_size},)")
    mapped = torch.zeros(vocab_size, dtype=torch.bool)
    mapped[target_ids] = True
    differing = (t2d.bool() != mapped).nonzero()
    if len(differing):
        at = int(differing[0])
        has, lacks = ("d2t", "t2d") if mapped[at] else ("t2d", "d2t")
        raise CheckpointError(
            file,
            f"d2t and t2d contradict each other on {len(differing)} ids; {has} has {at}, {lacks} has not",
        )
