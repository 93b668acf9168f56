from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import models

from respsd.control.action import Action
from respsd.engine.attention import Segment
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.tree import DraftTree, ancestors, draft_tree, root_only

PROMPT = [1, 40, 17, 99, 254, 3, 60]


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    return models.drafter()


@pytest.fixture(scope="module")
def prompt_state() -> tuple[int, torch.Tensor]:
    """The root after the prompt, and the prompt's features."""
    with torch.inference_mode():
        output = models.prefill(SequenceCache(models.target().layout, 32), PROMPT)
    return int(output.logits[-1].argmax()), output.features


def draft(drafter: Drafter, state: tuple[int, torch.Tensor], action: Action) -> DraftTree:
    root, features = state
    cache = SequenceCache(drafter.layout, len(PROMPT) + action.depth * action.top_k + 1)
    output = drafter.extend(cache, torch.tensor([*PROMPT[1:], root]), features)
    return draft_tree(drafter, cache, torch.tensor([root]), output, action)


def path_of(tree: DraftTree, node: int) -> list[int]:
    """Drafted tokens from the root to the node."""
    path: list[int] = []
    while node:
        path.insert(0, int(tree.tokens[node]))
        node = int(tree.parents[node])
    return path


def grow_slowly(drafter: Drafter, state: tuple[int, torch.Tensor], action: Action) -> dict[tuple[int, ...], float]:
    """The same tree by the book: each frontier node's distribution from an own pass over its whole path, no masks."""
    root, features = state

    def distribution(path: tuple[int, ...]) -> list[tuple[float, int]]:
        cache = SequenceCache(drafter.layout, 64)
        hidden = drafter.extend(cache, torch.tensor([*PROMPT[1:], root]), features)
        for token in path:
            one = torch.tensor([token])
            segment = Segment(cache, slice(0, 1), cache.length, None)
            hidden = drafter.forward([segment], one, hidden, drafter.rotation(cache.length, 1))
            cache.length += 1
        best = drafter.log_probs(hidden)[0].topk(action.top_k)
        ids = drafter.draft_to_target[best.indices].tolist()
        return list(zip(best.values.tolist(), ids, strict=True))

    candidates = {(token,): score for score, token in distribution(())}
    frontier = dict(candidates)
    for _ in range(action.depth):
        level = {(*path, token): score + step for path, score in frontier.items() for step, token in distribution(path)}
        candidates |= level
        frontier = dict(sorted(level.items(), key=lambda item: -item[1])[: action.top_k])
    best = sorted(candidates.items(), key=lambda item: -item[1])[: action.total_tokens - 1]
    return dict(best)


@torch.inference_mode()
@pytest.mark.parametrize("action", [Action(4, 1, 2), Action(16, 4, 4), Action(24, 3, 6), Action(60, 7, 10)], ids=str)
def test_the_tree_is_the_one_that_separate_passes_over_each_path_give(drafter, prompt_state, action):
    tree = draft(drafter, prompt_state, action)
    expected = grow_slowly(drafter, prompt_state, action)
    drafted = {tuple(path_of(tree, node)): float(tree.log_probs[node]) for node in range(1, tree.size)}
    assert drafted.keys() == expected.keys()
    assert all(math.isclose(drafted[path], score, abs_tol=1e-4) for path, score in expected.items())


@torch.inference_mode()
def test_layout_root_first_parents_before_children_levels_in_turn(drafter, prompt_state):
    tree = draft(drafter, prompt_state, Action(48, 5, 8))
    parents, depths = tree.parents.tolist(), tree.depths.tolist()
    assert tree.tokens[0] == prompt_state[0]
    assert (parents[0], depths[0]) == (0, 0)
    assert all(parents[node] < node for node in range(1, tree.size))
    assert all(depths[node] == depths[parents[node]] + 1 for node in range(1, tree.size))
    assert depths == sorted(depths)
    assert all(float(tree.log_probs[node]) <= float(tree.log_probs[parents[node]]) for node in range(1, tree.size))


@torch.inference_mode()
def test_siblings_have_distinct_tokens(drafter, prompt_state):
    tree = draft(drafter, prompt_state, Action(96, 6, 16))
    pairs = list(zip(tree.parents.tolist()[1:], tree.tokens.tolist()[1:], strict=True))
    assert len(pairs) == len(set(pairs))


@torch.inference_mode()
def test_a_pool_smaller_than_total_tokens_is_used_up(drafter, prompt_state):
    action = Action(60, 1, 2)
    assert draft(drafter, prompt_state, action).size == action.pool == 1 + 2 + 1 * 4


@torch.inference_mode()
def test_top_k_beyond_the_draft_vocabulary_takes_the_whole_vocabulary(drafter, prompt_state):
    tree = draft(drafter, prompt_state, Action(300, 0, 1000))
    assert tree.size == 1 + drafter.config.draft_vocab_size


@torch.inference_mode()
def test_equal_scores_never_orphan_a_node(drafter, prompt_state, monkeypatch):
    """A sure drafter gives children their parent's score exactly; the kept set must stay closed."""

    def certain(hidden: torch.Tensor) -> torch.Tensor:
        scores = torch.full((hidden.shape[0], drafter.config.draft_vocab_size), -50.0)
        scores[:, 3:9] = 0.0
        return scores

    monkeypatch.setattr(drafter, "log_probs", certain)
    for total in range(2, 40):
        tree = draft(drafter, prompt_state, Action(total, 4, 4))
        parents, depths = tree.parents.tolist(), tree.depths.tolist()
        assert all(depths[node] == depths[parents[node]] + 1 for node in range(1, tree.size))


def test_the_root_alone_is_plain_decoding():
    tree = root_only(torch.tensor([5]))
    assert (tree.size, tree.tokens.tolist(), tree.visible) == (1, [5], None)


def test_ancestors_by_hand():
    seen = ancestors(torch.tensor([0, 0, 1, 2, 0]), 3)
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 0, 0, 0, 1],
    ]


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(*(st.integers(0, max(0, i - 1)) for i in range(n)))))
def test_ancestors_equal_following_parents_one_by_one(parents):
    depths = [0] * len(parents)
    expected = [[False] * len(parents) for _ in parents]
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1 if node else 0
        walk = itertools.takewhile(lambda n: n is not None, _chain(parents, node))
        for other in walk:
            expected[node][other] = True
    assert ancestors(torch.tensor(parents), max(depths)).tolist() == expected


def _chain(parents: tuple[int, ...], node: int):
    while True:
        yield node
        if node == 0:
            return
        node = parents[node]
