"""The chunked soft cross-entropy against its plain formula."""

from __future__ import annotations

import pytest
import torch

from respsd.drafter_training import draft_loss
from respsd.drafter_training.draft_loss import step_loss, target_labels

ROWS, HIDDEN, DRAFT_VOCAB, VOCAB, POSITIONS = 30, 6, 11, 17, 40


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_loss, "_CHUNK_ROWS", {"cpu": 7})
    monkeypatch.setattr(draft_loss, "_PART_ROWS", {"cpu": 3})


def test_loss_and_gradients_equal_the_formula() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(ROWS, HIDDEN, requires_grad=True), torch.randn(DRAFT_VOCAB, HIDDEN, requires_grad=True)
    final, target_head = torch.randn(POSITIONS, HIDDEN), torch.randn(DRAFT_VOCAB, HIDDEN)
    to_draft = torch.full((VOCAB,), -1)
    to_draft[:DRAFT_VOCAB] = torch.arange(DRAFT_VOCAB)
    best, weight = torch.randint(0, VOCAB, (POSITIONS,)), torch.rand(POSITIONS)
    weight[::3] = 0  # the prompts', say
    positions, valid = torch.randint(0, POSITIONS, (ROWS,)), torch.rand(ROWS) > 0.2
    labels = target_labels(final, best, weight, target_head, to_draft)
    result = step_loss(hidden, head, labels, positions, valid)
    (3.0 * result.loss).backward()
    gradients = hidden.grad, head.grad

    hidden.grad = head.grad = None
    log_q = (hidden @ head.T).log_softmax(dim=-1)
    p = (final @ target_head.T).softmax(dim=-1)[positions]
    counts = weight[positions] * valid * (best[positions] < DRAFT_VOCAB)
    expected = -((p * log_q).sum(dim=-1) * counts).sum()
    (3.0 * expected).backward()
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(gradients, (hidden.grad, head.grad))
    counted = valid & (weight[positions] > 0)
    right = (log_q.argmax(dim=-1) == best[positions]) & counted
    assert int(result.agreed) == int(right.sum())
    assert int(result.counted) == int(counted.sum())


def test_by_hand() -> None:
    # p = softmax(0, log 4) = (1/5, 4/5), q = (1/2, 1/2): the cross-entropy is log 2 whatever p is, weight 2.
    labels = target_labels(
        torch.tensor([[1.0]]),
        torch.tensor([4]),
        torch.tensor([2.0]),
        torch.tensor([[0.0], [3.0]]).log1p(),
        torch.tensor([-1, -1, 0, -1, 1]),
    )
    torch.testing.assert_close(labels.probabilities, torch.tensor([[0.2, 0.8]]))
    result = step_loss(torch.zeros(1, 1), torch.ones(2, 1), labels, torch.tensor([0]), torch.tensor([True]))
    assert float(result.loss) == pytest.approx(2.0 * 0.693147, rel=1e-5)


def test_rows_whose_best_token_cannot_be_drafted_count_but_weigh_nothing() -> None:
    labels = target_labels(
        torch.ones(1, 1), torch.tensor([0]), torch.ones(1), torch.ones(2, 1), torch.tensor([-1, 0, 1])
    )
    result = step_loss(torch.ones(1, 1), torch.ones(2, 1), labels, torch.tensor([0]), torch.tensor([True]))
    assert float(result.loss) == 0.0
    assert (int(result.agreed), int(result.counted)) == (0, 1)
