"""The loss of one unrolled step: soft cross-entropy between the target's distribution and the drafter's.

    loss_j = -sum over rows of weight * sum over v of p(v) log q(v),   p: the target's, restricted to the draft
    vocabulary; rows whose most probable target token is outside of it weigh 0. EAGLE-3 (arXiv 2503.01840); notes in
    its code: the mean counts those rows, and step j weighs 0.8 ** j.

Scores over the draft vocabulary are by far the largest tensors here. They are made in chunks of rows, and used and
turned into gradients in parts of these that stay in the processor's cache, in the forward pass already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

_CHUNK_ROWS = {"cpu": 128, "cuda": 4096}
"""Rows of one product."""
_PART_ROWS = {"cpu": 16, "cuda": 4096}
"""Of these, rows that are worked on at once: a few float32 tensors of 8,192 tokens each fit a core's own cache."""


@dataclass(frozen=True, slots=True)
class TargetLabels:
    """What the target says at every packed position of a batch."""

    probabilities: Tensor  # [labelled, draft vocab], at the positions that count; the prompts' mostly do not
    place: Tensor  # int64 [positions]: its row there; any where the position does not count
    best: Tensor  # int64 [positions]: draft id of its most probable token; -1 where it has none
    weight: Tensor  # float32 [positions]: 0 where `best` is -1
    counted: Tensor  # bool [positions]: predictions that count at all, whether or not the drafter can make them


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss and counts of one unrolled step."""

    loss: Tensor  # scalar: weighted sum over rows
    agreed: Tensor  # int64 scalar: rows where drafter and target have the same most probable token
    counted: Tensor  # int64 scalar: rows that have a label, whether or not the drafter can say it


@torch.no_grad()
def target_labels(final: Tensor, best: Tensor, weight: Tensor, head: Tensor, to_draft: Tensor) -> TargetLabels:
    """Labels of a batch.

    :param final: [positions, hidden], the target's state before its head; `head` [draft vocab, hidden], its rows of it.
    :param best: int64 [positions], target ids; `to_draft` int64 [vocab], their draft ids or -1.
    """
    labelled = weight > 0
    chunks = final[labelled].split(_CHUNK_ROWS[final.device.type])
    probabilities = torch.cat([(chunk @ head.T).float().softmax(dim=-1).to(head.dtype) for chunk in chunks])
    draft_best = to_draft[best]
    place = (labelled.cumsum(0) - 1).clamp_(min=0)
    return TargetLabels(probabilities, place, draft_best, weight * (draft_best >= 0), labelled)


def step_loss(hidden: Tensor, head: Tensor, labels: TargetLabels, positions: Tensor, valid: Tensor) -> StepLoss:
    """The loss of a step's rows.

    :param hidden: [rows, hidden], normed outputs; `head` [draft vocab, hidden], the drafter's.
    :param positions: int64 [rows], where each row's label stands; `valid` bool [rows], whether it has one.
    """
    weight = labels.weight[positions] * valid
    best = labels.best[positions]
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
    loss, agreed = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch declares it without types
        hidden, head, labels.probabilities, labels.place[positions], weight, best, dtype
    )
    return StepLoss(loss, agreed, (valid & labels.counted[positions]).sum())


class _SoftCrossEntropy(torch.autograd.Function):
    """Scores, loss and both gradients in one pass over chunks of rows.

    The gradient of a row's loss by its scores is weight * (q - p). It is kept in the compute dtype, [rows, draft
    vocab], so that the head's gradient is a single product.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        head: Tensor,
        probabilities: Tensor,
        places: Tensor,
        weight: Tensor,
        best: Tensor,
        dtype: torch.dtype | None,
    ) -> tuple[Tensor, Tensor]:
        rows = hidden.shape[0]
        compute_hidden, compute_head = hidden.to(dtype or hidden.dtype), head.to(dtype or head.dtype)
        score_gradient = torch.empty((rows, head.shape[0]), dtype=compute_head.dtype, device=hidden.device)
        loss = hidden.new_zeros((), dtype=torch.float32)
        agreed = torch.zeros((), dtype=torch.int64, device=hidden.device)
        device = hidden.device.type
        for start in range(0, rows, _CHUNK_ROWS[device]):
            products = compute_hidden[start : start + _CHUNK_ROWS[device]] @ compute_head.T
            first = start
            for scores in products.split(_PART_ROWS[device]):
                part = slice(first, first + len(scores))
                first = part.stop
                log_q = scores.log_softmax(dim=-1, dtype=torch.float32)  # [part, draft vocab]
                wanted = probabilities[places[part]].float()
                loss -= (weight[part] * (wanted * log_q).sum(dim=-1)).sum()
                right = log_q.gather(1, best[part, None].clamp(min=0))[:, 0] == log_q.amax(dim=-1)
                agreed += (right & (weight[part] > 0)).sum()
                score_gradient[part] = log_q.exp_().sub_(wanted).mul_(weight[part, None])
        ctx.save_for_backward(score_gradient, compute_hidden, compute_head)
        ctx.mark_non_differentiable(agreed)
        return loss, agreed

    @staticmethod
    def backward(ctx: FunctionCtx, loss_gradient: Tensor, _agreed: Tensor) -> tuple[Tensor | None, ...]:
        score_gradient, hidden, head = ctx.saved_tensors  # type: ignore[attr-defined]  # set by torch
        hidden_gradient = (score_gradient @ head).float() * loss_gradient
        head_gradient = (score_gradient.T @ hidden).float() * loss_gradient
        return hidden_gradient, head_gradient, None, None, None, None, None
