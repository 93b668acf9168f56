"""The draft vocabulary."""

from __future__ import annotations

import pytest
import torch

from respsd.drafter_training.vocabulary import coverage, draft_vocabulary
from respsd.errors import InvalidRequest

#                      0  1  2  3  4  5  6  7
COUNTS = torch.tensor([0, 0, 1, 3, 0, 3, 0, 1])


def test_the_most_frequent_tokens_are_taken_in_order_of_id() -> None:
    # Of equal counts the lower id wins.
    assert draft_vocabulary(COUNTS, 3).tolist() == [2, 3, 5]
    assert draft_vocabulary(COUNTS, 1).tolist() == [3]


def test_coverage_is_the_share_of_all_tokens() -> None:
    assert coverage(COUNTS, draft_vocabulary(COUNTS, 2)) == pytest.approx(6 / 8)


@pytest.mark.parametrize("size", [0, 5])
def test_a_size_that_the_answers_cannot_fill_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequest, match=f"draft vocabulary: {size} .* 4 different tokens"):
        draft_vocabulary(COUNTS, size)
