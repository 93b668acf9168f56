from __future__ import annotations

import pytest
import torch
from support.engines import load_tiny

from respsd.bench import lossless
from respsd.bench.lossless import Difference, verify_lossless
from respsd.control.action import OFF, Action
from respsd.engine import step
from respsd.engine.tree import DraftTree

PROMPTS = [[1, 40, 17, 99], [1, 200]]


def test_a_lossless_engine_has_no_differences():
    report = verify_lossless(load_tiny(), PROMPTS, 24, (Action(8, 3, 3), Action(16, 4, 4)))
    assert (report.dtype, report.prompts, report.compared) == ("float32", 2, 8)
    assert report.differences == ()
    assert (report.unexplained, report.prompts_that_differ) == (0, 0)


def test_a_broken_tree_mask_is_found_and_not_explained(monkeypatch):
    """Every node sees every other: outputs leave plain decoding where no rounding would."""

    def blind(tree: DraftTree) -> DraftTree:
        return DraftTree(
            tree.tokens,
            tree.parents,
            tree.depths,
            tree.log_probs,
            torch.ones(tree.size, tree.size).bool(),
            tree.root_entropy,
        )

    drafted = step.draft_trees
    monkeypatch.setattr(step, "draft_trees", lambda *args: [blind(tree) for tree in drafted(*args)])
    report = verify_lossless(load_tiny(), [[1, 40, 17, 99, 254, 3, 60]], 60, (Action(60, 7, 10),))
    assert report.unexplained == len(report.differences) == 2
    assert [difference.sampled for difference in report.differences] == [False, True]
    assert report.differences[0].logit_gap > 0
    assert report.differences[0].tolerance == 0.0


def test_half_precision_differences_are_explained_by_close_logits_only():
    close = Difference(0, OFF, False, 3, logit_gap=0.1, tolerance=0.5)
    far = Difference(0, OFF, False, 3, logit_gap=0.6, tolerance=0.5)
    assert close.explained
    assert not far.explained


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, 0.0), (torch.bfloat16, 4 * 2**-7 * 16.0)])
def test_tolerance_is_a_few_steps_of_the_number_format(dtype, expected):
    assert lossless._tolerance(dtype, -16.0) == expected
