from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.control.action import EAGLE3, OFF, Action, ActionTable, paper_table
from respsd.control.reserve import excess
from respsd.errors import InvalidRequest
from respsd.settings import ControlSettings

actions = st.builds(
    Action, total_tokens=st.integers(2, 300), depth=st.integers(0, 20), top_k=st.integers(1, 64)
) | st.just(OFF)
knob = st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True)


def test_the_paper_has_177_actions() -> None:
    table = paper_table()
    assert len(table) == 177
    missing = {(tt, 3, 8) for tt in (80, 96, 128)}
    assert not any((a.total_tokens, a.depth, a.top_k) in missing for a in table)
    assert table.largest == Action(128, 8, 32)


def test_index_order_is_total_tokens_then_depth_then_top_k_slowest_first() -> None:
    table = paper_table()
    assert table[0] == Action(32, 3, 8)
    assert table[1] == Action(32, 3, 12)
    assert table[5] == Action(32, 4, 8)
    assert table[176] == Action(128, 8, 32)


def test_the_default_table_is_the_papers_extended_downwards_with_off() -> None:
    table = ControlSettings().table()
    assert set(paper_table()) < set(table)
    assert table[0] == OFF
    assert Action(16, 4, 4) in table.actions
    assert Action(4, 8, 2) in table.actions


def test_eagle3_is_a_tree_of_59_drafted_tokens_from_a_pool_of_711() -> None:
    assert str(EAGLE3) == "60,7,10"
    assert EAGLE3.pool == 1 + 10 + 7 * 100
    assert OFF.pool == 1


@given(actions)
def test_text_round_trips(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(st.text(max_size=20))
def test_any_text_is_an_action_or_an_invalid_request(text: str) -> None:
    try:
        action = Action.parse(text)
    except InvalidRequest:
        return
    assert action.validated() is action


@pytest.mark.parametrize("text", ["0,1,1", "1,4,4", "16,4", "16,4,4,4", "-16,4,4", "16,4,0", "", "on"])
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Action.parse(text)


def test_off_can_be_written_as_its_triple() -> None:
    assert Action.parse("1,0,0") == Action.parse(" OFF ") == OFF


@given(knob, knob, knob, st.booleans())
def test_a_grid_holds_exactly_the_legal_actions_in_order(
    tokens: list[int], depths: list[int], top_ks: list[int], with_off: bool
) -> None:
    tokens = [count + 1 for count in tokens]
    legal = {(n, d, k) for n in tokens for d in depths for k in top_ks if n <= k ** (d - 1)}
    if not legal and not with_off:
        with pytest.raises(InvalidRequest):
            ActionTable.grid(tokens, depths, top_ks)
        return
    table = ActionTable.grid(sorted(tokens), sorted(depths), sorted(top_ks), with_off=with_off)
    drawn = [a for a in table if a != OFF]
    assert {(a.total_tokens, a.depth, a.top_k) for a in drawn} == legal
    assert all(earlier < later for earlier, later in pairwise(drawn))
    assert (table[0] == OFF) == with_off
    assert all(table.index(action) == number for number, action in enumerate(table))
    assert all(excess(action, table.largest) is None for action in table)


@given(st.lists(actions, min_size=1, max_size=6, unique=True))
def test_the_fingerprint_names_the_actions_and_their_order(chosen: list[Action]) -> None:
    table = ActionTable(tuple(chosen))
    assert ActionTable(tuple(chosen)).fingerprint == table.fingerprint
    assert len(chosen) == 1 or ActionTable(tuple(reversed(chosen))).fingerprint != table.fingerprint
    with pytest.raises(InvalidRequest):
        ActionTable((*chosen, chosen[0]))


@given(actions, actions)
def test_excess_names_a_knob_exactly_where_one_is_over(action: Action, reserved: Action) -> None:
    over = excess(action, reserved)
    fits = (
        action.total_tokens <= reserved.total_tokens
        and action.depth <= reserved.depth
        and action.top_k <= reserved.top_k
    )
    assert (over is None) == fits
    if over is not None:
        assert over.value == getattr(action, over.knob) > over.limit == getattr(reserved, over.knob)
