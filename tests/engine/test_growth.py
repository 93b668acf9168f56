"""Growing trees for many sequences at once, and only as far as they matter, gives each the tree of its own."""

from __future__ import annotations

import random

import pytest
import torch
from support import models, tiny

from respsd.control.action import Action
from respsd.engine import tree as trees
from respsd.engine.drafter import Drafter
from respsd.engine.growth import Candidates, Growth, grow_all
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.tree import DraftRequest, DraftTree, draft_tree, draft_trees

ACTIONS = [Action(4, 1, 2), Action(16, 4, 4), Action(8, 7, 8), Action(60, 7, 10), Action(24, 0, 5), Action(3, 8, 16)]


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    return models.drafter()


class Prompted:
    """A sequence that is ready to be drafted for."""

    def __init__(self, drafter: Drafter, prompt: list[int]) -> None:
        output = models.prefill(SequenceCache(models.target().layout, 64), prompt)
        root = int(output.logits[-1].argmax())
        self.cache = SequenceCache(drafter.layout, len(prompt) + 300)
        self.output = drafter.extend(self.cache, torch.tensor([*prompt[1:], root]), output.features)
        self.root = torch.tensor([root])


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(5)
    return [[1, *(draw.randrange(3, tiny.VOCAB) for _ in range(draw.randrange(1, 20)))] for _ in range(count)]


def shape(tree: DraftTree) -> tuple[list[int], list[int], list[int], list[list[bool]]]:
    assert tree.visible is not None
    return tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), tree.visible.tolist()


def whole_tree(drafter: Drafter, prompted: Prompted, action: Action) -> DraftTree:
    """With every frontier expanded in full."""
    growth = Growth(drafter, prompted.cache, action.depth, action.top_k)
    grow_all(drafter, [growth], prompted.output)
    return trees._select(drafter, prompted.root, growth.candidates(), action.total_tokens - 1)


@torch.inference_mode()
@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_growing_only_what_can_matter_gives_the_whole_tree(drafter, action):
    for prompt in prompts(6):
        prompted = Prompted(drafter, prompt)
        ours = draft_tree(drafter, prompted.cache, prompted.root, prompted.output, action)
        whole = whole_tree(drafter, prompted, action)
        assert shape(ours) == shape(whole)
        torch.testing.assert_close(ours.log_probs, whole.log_probs, atol=1e-5, rtol=0)


def candidates_of(drafter: Drafter, action: Action, scores: list[float]) -> Candidates:
    """Candidates where every node's children have these log-probabilities."""
    step = torch.full((drafter.config.draft_vocab_size,), -50.0)
    step[: len(scores)] = torch.tensor(scores)
    growth = Growth(drafter, SequenceCache(drafter.layout, 1), action.depth, action.top_k, action.total_tokens - 1)
    hidden = torch.zeros(1, tiny.HIDDEN)
    growth.begin(step, torch.tensor(0.0), hidden)
    while growth.count:
        growth.expand(step.expand(growth.count, -1), hidden.expand(growth.count, -1))
    return growth.candidates()


def test_a_frontier_that_cannot_reach_the_tree_is_not_expanded(drafter):
    """Three kept of -1, -2, -3: the children of -1 score -2 and below, no more than what is there already."""
    candidates = candidates_of(drafter, Action(4, 5, 3), [-1.0, -2.0, -3.0])
    assert candidates.log_probs.tolist() == [-1, -2, -3, -2, -3, -4, -3, -4, -5]
    assert candidates.levels == 2


def test_equal_scores_do_not_count_as_better(drafter):
    """Children of a sure node tie with it; two of them are kept and came first, so nothing below can be."""
    candidates = candidates_of(drafter, Action(3, 5, 2), [0.0, 0.0])
    assert candidates.levels == 1


def test_growing_goes_on_to_the_full_depth_while_it_may_pay(drafter):
    candidates = candidates_of(drafter, Action(20, 5, 2), [-0.1, -9.0])
    assert candidates.levels == 6


@torch.inference_mode()
def test_a_batch_of_unequal_actions_gives_each_sequence_the_tree_it_gets_alone(drafter):
    prompted = [Prompted(drafter, prompt) for prompt in prompts(len(ACTIONS))]
    alone = [
        draft_tree(drafter, each.cache, each.root, each.output, action)
        for each, action in zip(prompted, ACTIONS, strict=True)
    ]
    requests = [DraftRequest(each.cache, each.root, action) for each, action in zip(prompted, ACTIONS, strict=True)]
    together = draft_trees(drafter, requests, torch.cat([each.output for each in prompted]))
    assert [shape(tree) for tree in together] == [shape(tree) for tree in alone]


@torch.inference_mode()
def test_one_pass_of_the_drafter_a_level_serves_all(drafter, monkeypatch):
    prompted = [Prompted(drafter, prompt) for prompt in prompts(3)]
    passes: list[int] = []
    forward = drafter.forward
    monkeypatch.setattr(
        drafter, "forward", lambda segments, *rest: passes.append(len(segments)) or forward(segments, *rest)
    )
    actions = [Action(60, 1, 4), Action(60, 3, 4), Action(60, 3, 8)]
    requests = [DraftRequest(each.cache, each.root, action) for each, action in zip(prompted, actions, strict=True)]
    draft_trees(drafter, requests, torch.cat([each.output for each in prompted]))
    assert passes == [3, 2, 2]


@torch.inference_mode()
def test_committed_rows_of_many_sequences_go_in_together(drafter):
    generator = torch.Generator().manual_seed(3)
    batch = [
        (torch.randint(tiny.VOCAB, (n,), generator=generator), torch.randn(n, 3 * tiny.HIDDEN, generator=generator))
        for n in (1, 7, 3)
    ]
    caches = [SequenceCache(drafter.layout, 8) for _ in batch]
    together = drafter.extend_all([(cache, *rows) for cache, rows in zip(caches, batch, strict=True)])
    alone = [drafter.extend(SequenceCache(drafter.layout, 8), *rows) for rows in batch]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
    assert [cache.length for cache in caches] == [1, 7, 3]
