"""Trees on paper against the engine's own, on the tiny pair."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from support import models as tiny_models
from support.engines import load_tiny, plain, request, running

from respsd.calibration.drafts import Answer, record_answers
from respsd.calibration.replay import NEVER, AnswerRecord, Axes, WideTree, acceptance, growth, replay
from respsd.clock import SystemClock
from respsd.control.action import Action
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.target import causal_rows
from respsd.engine.tree import draft_tree, grow
from respsd.engine.walk import walk

DEPTH = 4
AXES = Axes(top_ks=(1, 2, 3, 5, 8), depth=DEPTH, total_tokens=(2, 3, 5, 9, 20))
PROMPT = [1, 40, 17, 99, 23, 64]


def hand_made() -> WideTree:
    """Width 2, depth 1: a and b below the root, then both with two children each.

    root - a (-1.0) - c (-1.2), d (-3.0)
         - b (-0.5, sorted first) - e (-2.0), f (-2.5)
    """
    return WideTree(
        top_k=2,
        depth=1,
        tokens=np.array([11, 10, 14, 15, 12, 13]),  # b, a; e, f; c, d
        log_probs=np.array([-0.5, -1.0, -2.0, -2.5, -1.2, -3.0]),
        parents=np.array([-1, -1, 0, 0, 1, 1]),
    )


def test_a_hand_made_tree():
    totals = replay(hand_made(), [10, 12, 77], [1, 2], [2]).smallest_totals
    # Width 1: the only first-level node is b (11), so a is never held, at either depth.
    assert totals[0].tolist() == [[NEVER, NEVER], [NEVER, NEVER]]
    # Width 2, depth 0: a is second of two: root, b, a. Depth 1: b, a, c, e, f, d by score, so a 3, c 4.
    assert totals[1].tolist() == [[3, NEVER], [3, 4]]


def test_a_token_that_was_not_drafted_ends_the_path():
    totals = replay(hand_made(), [11, 12], [2], [2]).smallest_totals
    assert totals[0, 1].tolist() == [2, NEVER]


def test_an_answer_that_ends_is_held_no_further():
    assert replay(hand_made(), [11], [2], [2]).smallest_totals[0, 1].tolist() == [2, NEVER]


def test_only_nodes_that_can_have_descendants_in_the_tree_are_expanded():
    """b -0.5 and a -1.0: a tree of the root and one more keeps b; nothing below it can outrank it."""
    expanded = replay(hand_made(), [11], [2], [2, 3, 4]).expanded
    assert expanded.tolist() == [[[0, 1, 2]]]


def test_steps_walk_over_the_answer():
    """Places 0, 1, 2: a tree that holds one token at 0 jumps to 2, where it holds none."""
    totals = np.full((3, 1, 1, 1), NEVER, np.int16)
    totals[0] = totals[1] = 4
    made = acceptance([AnswerRecord(totals, np.zeros((3, 1, 0, 2), np.int16))], Axes((1,), 0, (2, 4)))
    assert made.tau.values == (((1.0, 1.5),),)  # 3 steps of one token; steps of 2 and 1 tokens
    assert made.places == 3


def test_growth_is_the_mean_share_of_levels_and_rows():
    """Two places, width 4, two levels: 4 and 0 rows, then 2 and 2."""
    expanded = np.array([[[[4], [0]]], [[[2], [2]]]], np.int16)
    made = growth([AnswerRecord(np.zeros((2, 1, 3, 3), np.int16), expanded)], Axes((4,), 2, (8,)))
    assert made.levels.values == (((1.0,), (1.0,), (0.75,)),)
    assert made.rows.values == (((1.0,), (0.75,), (0.5,)),)


@pytest.fixture(scope="module")
def answer() -> tuple[int, ...]:
    """The tiny target's greedy answer."""
    with running(load_tiny()) as rig:
        return rig.generate(plain(PROMPT, 120)).token_ids


@torch.inference_mode()
def test_every_narrower_tree_drafts_and_holds_what_the_engine_would(answer, monkeypatch):
    target, drafter = tiny_models.target(), tiny_models.drafter()
    drafted: list[int] = []
    forward = drafter.forward
    monkeypatch.setattr(
        drafter,
        "forward",
        lambda segments, tokens, *rest: (drafted.append(len(tokens)), forward(segments, tokens, *rest))[1],
    )
    tokens = [*PROMPT, *answer[:30]]
    cache = SequenceCache(target.layout, len(tokens))
    features = target.forward([causal_rows(cache, tokens, scored=1)])[0].features
    rows, accepted = torch.tensor(tokens), []
    for start in range(len(PROMPT), len(PROMPT) + 12):
        draft_cache = SequenceCache(drafter.layout, len(tokens) + DEPTH * max(AXES.top_ks))
        output = drafter.extend(draft_cache, rows[1 : start + 1], features[:start])
        truth = tokens[start + 1 :][: DEPTH + 1]
        candidates = grow(drafter, draft_cache, output, DEPTH, max(AXES.top_ks))
        wide = WideTree(
            max(AXES.top_ks),
            DEPTH,
            drafter.draft_to_target[candidates.tokens].numpy(),
            candidates.log_probs.double().numpy(),
            candidates.parents.numpy(),
        )
        place = replay(wide, truth, AXES.top_ks, AXES.total_tokens)
        for (which, top_k), depth, (column, total) in itertools.product(
            enumerate(AXES.top_ks), range(DEPTH + 1), enumerate(AXES.total_tokens)
        ):
            action = Action(total, depth, top_k)
            drafted.clear()
            if total > action.pool:
                continue
            tree = draft_tree(drafter, draft_cache, rows[start : start + 1], output, action)
            path = walk(tree.tokens.numpy(), tree.parents.numpy(), lambda _, path, truth=truth: (*truth, -1)[len(path)])
            assert int((place.smallest_totals[which, depth] <= total).sum()) == path.accepted, (start, action)
            assert [*drafted, 0] == [*(each for each in place.expanded[which, :depth, column] if each), 0], (
                start,
                action,
            )
            accepted.append(path.accepted)
    assert min(accepted) == 0
    assert max(accepted) >= 3


def test_tau_of_a_recorded_answer_is_that_of_the_engine(answer):
    """Replayed steps against steps that were run."""
    models, action = load_tiny(), Action(9, DEPTH, 3)
    with running(models) as rig:
        ran = rig.generate(request(PROMPT, len(answer), action=action))
    assert ran.token_ids == answer
    (record,) = record_answers(models, [Answer(tuple(PROMPT), answer, ended=False)], AXES, 600.0, SystemClock())
    assert len(record.smallest_totals) == len(answer) - 1 - (DEPTH + 1)
    replayed = acceptance([record], AXES).of(action)
    # The last few steps differ: the budget cuts the engine's, the replay ends where what follows is not known.
    assert replayed == pytest.approx(ran.tau, rel=0.06)
    assert replayed > 1.5


def test_answers_take_turns_until_the_time_is_up(answer):
    answers = [Answer(tuple(PROMPT), answer[:60], ended=False)] * 3

    class Ticks:
        """A second passes with every turn."""

        now = 0

        def monotonic_ns(self) -> int:
            self.now += 1_000_000_000
            return self.now

        def time_ns(self) -> int:
            return 0

    records = record_answers(load_tiny(), answers, Axes((2,), 2, (4,)), 4.5, Ticks())
    assert [len(record.smallest_totals) for record in records] == [16, 16, 8]
