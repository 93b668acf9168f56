from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from respsd.engine.walk import walk

# root 7 -> (20 -> (30, 31), 21 -> 30)
TOKENS = np.array([7, 20, 21, 30, 31, 30])
PARENTS = np.array([0, 0, 0, 1, 1, 2])


def follow(*answers: int):
    """A draw that gives these tokens in turn."""
    given_out = iter(answers)
    return lambda node, path: next(given_out)


def test_no_child_matches():
    result = walk(TOKENS, PARENTS, follow(99))
    assert (result.nodes, result.tokens, result.accepted) == ([0], [99], 0)


def test_the_path_goes_on_while_children_match_and_ends_with_the_bonus_token():
    result = walk(TOKENS, PARENTS, follow(20, 31, 8))
    assert (result.nodes, result.tokens, result.accepted) == ([0, 1, 4], [20, 31, 8], 2)


def test_a_match_under_another_parent_does_not_count():
    """31 stands in the tree, but not under node 2."""
    result = walk(TOKENS, PARENTS, follow(21, 31))
    assert (result.nodes, result.tokens) == ([0, 2], [21, 31])


def test_the_roots_own_token_drawn_again_does_not_loop():
    result = walk(TOKENS, PARENTS, follow(7))
    assert (result.nodes, result.tokens) == ([0], [7])


def test_draw_sees_the_drafted_path_of_its_node():
    seen: list[tuple[int, list[int]]] = []

    def draw(node: int, path: list[int]) -> int:
        seen.append((node, list(path)))
        return [20, 30, 1][len(seen) - 1]

    walk(TOKENS, PARENTS, draw)
    assert seen == [(0, []), (1, [20]), (3, [20, 30])]


@given(st.data())
def test_any_tree_gives_the_tokens_that_plain_decoding_draws(data):
    """Tokens are a function of the path alone: the walk yields a prefix of the plain sequence, whatever the tree."""
    size = data.draw(st.integers(1, 24))
    parents = [0] + [data.draw(st.integers(0, node - 1)) for node in range(1, size)]
    tokens: list[int] = [0]
    for node in range(1, size):
        taken = {tokens[other] for other in range(1, node) if parents[other] == parents[node]}
        tokens.append(data.draw(st.integers(0, 30).filter(lambda t, taken=taken: t not in taken)))
    salt = data.draw(st.integers(0, 1000))

    def plain(path: list[int]) -> int:
        return hash((salt, *path)) % 4

    result = walk(np.array(tokens), np.array(parents), lambda node, path: plain(path))
    expected: list[int] = []
    while len(expected) < len(result.tokens):
        expected.append(plain(expected))
    assert result.tokens == expected
    assert result.accepted == len(result.tokens) - 1
    assert [tokens[node] for node in result.nodes[1:]] == result.tokens[:-1]
