from __future__ import annotations

import pytest
from support.bench_fakes import block, steady, step

from respsd.bench.comparison.step_figures import acceptance_by_depth, step_figures
from respsd.control.action import OFF, Action

TREE = Action(8, 2, 3)


def test_shares_of_the_steps_time_by_hand():
    steps = [step(TREE, 1, draft=20, verify=70, other=10), step(TREE, 0, draft=40, verify=150, other=10)]
    figures = step_figures([block(steady(10.0), steps=steps, policy_seconds=3e-9)])
    assert figures is not None
    assert figures.draft_share == pytest.approx(60 / 300)
    assert figures.verify_share == pytest.approx(220 / 300)
    assert figures.overhead_share == pytest.approx(20 / 300)
    assert figures.policy_share == pytest.approx(3 / 300)
    assert (figures.steps, figures.drafted_tokens) == (2, 7.0)
    assert figures.step_ms_p50 == pytest.approx(150e-6)


def test_a_step_that_two_streams_share_takes_its_time_once():
    shared = [step(TREE, 0, draft=0, verify=100, other=0, batch_size=2)] * 2
    alone = [step(TREE, 0, draft=100, verify=0, other=0)]
    figures = step_figures([block(steady(10.0), steps=[*shared, *alone], policy_seconds=20e-9)])
    assert figures is not None
    assert (figures.draft_share, figures.verify_share) == (0.5, 0.5)
    assert figures.policy_share == pytest.approx(0.1)


def test_acceptance_counts_steps_whose_trees_were_deep_enough():
    steps = [step(TREE, 3), step(TREE, 1), step(TREE, 0), step(Action(4, 0, 3), 1), step(OFF, 0)]
    # Depth 1: three of four drafted steps; 2 and 3: one of the three deep trees.
    assert acceptance_by_depth(steps) == pytest.approx((3 / 4, 1 / 3, 1 / 3))
    assert acceptance_by_depth([step(OFF, 0)]) == ()


def test_transformers_has_no_steps():
    assert step_figures([block(steady(10.0))]) is None
