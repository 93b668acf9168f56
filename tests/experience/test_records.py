"""Rows wait to be written, sometimes thousands of them, and must hold on to nothing but their values."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

from respsd.experience.rows import transition_values


class LiveBlock:
    """As a rollout has them: it leads to the policies that are compared."""

    def __init__(self) -> None:
        self.number = 7
        self.over = False


def test_a_row_at_rest_keeps_its_blocks_number_and_lets_go_of_the_block(make_window):
    block = LiveBlock()
    alive, row = weakref.ref(block), make_window()
    row = replace(row, decision=replace(row.decision, block=block))
    expected = transition_values(row, 1)
    row = row.at_rest()
    del block
    gc.collect()
    assert alive() is None
    assert transition_values(row, 1) == expected
    assert expected["block"] == 7


def test_a_row_without_a_block_is_at_rest_already(make_window):
    row = make_window()
    assert row.at_rest() is row
