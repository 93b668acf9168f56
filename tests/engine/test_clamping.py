from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.control.action import EAGLE3, OFF, Action
from respsd.engine.clamping import clamp


@pytest.mark.parametrize(
    ("vocab", "context", "budget", "expected"),
    [
        (1000, 500, 500, EAGLE3),
        (1000, 500, 9, EAGLE3),  # depth 7 commits 9 at most
        (1000, 500, 8, Action(60, 6, 10)),
        (1000, 500, 2, Action(11, 0, 10)),  # a pool of 1 + 10
        (1000, 500, 1, OFF),
        (1000, 3, 500, Action(60, 2, 10)),
        (1000, 0, 500, OFF),
        (2, 500, 500, Action(31, 7, 2)),  # 1 + 2 + 7 * 4
    ],
)
def test_an_action_is_cut_to_what_can_still_be_used(vocab, context, budget, expected):
    assert clamp(EAGLE3, draft_vocab=vocab, context_left=context, budget_left=budget) == expected


@given(st.integers(1, 50), st.integers(-1, 300), st.integers(1, 300))
def test_nothing_outgrows_what_was_asked_for_or_what_is_left(vocab, context, budget):
    cut = clamp(Action(128, 8, 32), draft_vocab=vocab, context_left=context, budget_left=budget)
    assert cut == cut.validated()
    assert cut.total_tokens <= min(128, cut.pool)
    assert cut.is_off or (cut.depth + 2 <= budget and cut.depth + 1 <= context and cut.top_k <= vocab)
