"""What of an action can still be used near the end of a request."""

from __future__ import annotations

from respsd.control.action import OFF, Action


def clamp(action: Action, *, draft_vocab: int, context_left: int, budget_left: int) -> Action:
    """Cut the action to the drafter's pool, the context's rest and the output's budget.

    A step commits at most one token more than its tree is deep, so a tree deeper than the rest of the budget less one
    is work thrown away; with one token left, the step decodes plainly.

    :param context_left: positions behind the root; `budget_left` tokens that the output may still have.
    """
    if action.is_off:
        return OFF
    depth = min(action.depth, context_left - 1, budget_left - 2)
    if depth < 0:
        return OFF
    top_k = min(action.top_k, draft_vocab)
    return Action(min(action.total_tokens, Action(action.total_tokens, depth, top_k).pool), depth, top_k)
