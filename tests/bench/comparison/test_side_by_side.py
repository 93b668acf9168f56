from __future__ import annotations

import random

from support.bench_fakes import FakeDecoder

from respsd.bench.comparison.conversation import AnswerRules
from respsd.bench.comparison.side_by_side import Cell, blocks, compare
from respsd.bench.questions import QuestionSet
from respsd.engine.stub import ByteTokenizer

RULES = AnswerRules(max_new_tokens=64, context_length=500)


def test_blocks_hold_every_question_and_are_filled_up_from_the_beginning():
    assert blocks(3, 1) == [(0,), (1,), (2,)]
    assert blocks(5, 2) == [(0, 1), (2, 3), (4, 0)]
    assert blocks(1, 3) == [(0, 0, 0)]


def run(cells, sets, seed=0):
    journal: list = []
    decoders = {cell: FakeDecoder(name=f"{cell.method}@{cell.concurrency}", journal=journal) for cell in cells}
    told: list[int] = []
    samples = compare(decoders, sets, ByteTokenizer(), RULES, random.Random(seed), told.append)
    return samples, journal, told


def test_every_question_is_answered_by_all_methods_before_the_next_one():
    cells = [Cell("a", 1), Cell("b", 1), Cell("a", 1, again=True)]
    questions = QuestionSet("q", ((1,), (2,), (3,)))
    samples, journal, told = run(cells, [questions])
    measured = journal[len(cells) :]
    assert [prompts for _, prompts, _, _ in measured] == [[[q]] for q in (1, 2, 3) for _ in cells]
    for first in (0, 3, 6):
        assert {sample.cell for sample in samples[first : first + 3]} == set(cells)
    assert told == [1, 1, 1]


def test_the_order_of_the_methods_changes_and_is_the_seeds():
    cells = [Cell(name, 1) for name in "abcd"]
    questions = QuestionSet("q", tuple((n,) for n in range(12)))
    orders = [[sample.cell.method for sample in run(cells, [questions], seed)[0]] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(orders[0][n : n + 4]) for n in range(0, 48, 4)}) > 4


def test_one_stream_and_many_answer_the_same_block():
    samples, journal, told = run([Cell("a", 1), Cell("a", 4)], [QuestionSet("q", ((1,), (2,), (3,), (4,), (5,)))])
    assert [sample.block for sample in samples] == [(0, 1, 2, 3)] * 2 + [(4, 0, 1, 2)] * 2
    sizes = {(name, len(prompts)) for name, prompts, _, _ in journal}
    assert sizes == {("a@1", 1), ("a@4", 4)}
    assert told == [4, 1]  # of five; three fill the second block up


def test_warm_up_is_short_and_leaves_no_sample():
    samples, journal, _ = run([Cell("a", 2)], [QuestionSet("q", ((1,), (2,)))])
    assert journal[0] == ("a@2", [[1], [1]], 32, True)
    assert len(samples) == 1
