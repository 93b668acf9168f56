from __future__ import annotations

import pytest
from support.bench_fakes import answer, block, steady

from respsd.bench.comparison.report import ALL_SETS, noise, summarise
from respsd.bench.comparison.side_by_side import Cell, Sample

A, B, A8, B8 = Cell("a", 1), Cell("b", 1), Cell("a", 2), Cell("b", 2)


def samples(cell, speeds, *, questions="q", ids=None):
    return [Sample(questions, (number,), cell, block(steady(speed, ids=ids))) for number, speed in enumerate(speeds)]


def test_ratios_are_paired_by_question():
    found = [*samples(A, [10.0, 20.0, 40.0]), *samples(B, [20.0, 40.0, 80.0])]
    first, second = summarise(found, [A, B], plain="a")
    assert (first.method, second.method) == ("a", "b")
    assert first.ratio is not None
    assert second.ratio is not None
    assert first.ratio.ratio == pytest.approx(1.0)
    assert (second.ratio.ratio, second.ratio.pairs) == (pytest.approx(2.0), 3)
    assert second.ratio.low == pytest.approx(2.0)
    # 30 tokens after the first ones in 1 + 0.5 + 0.25 s, and 33 in that and 3 * 0.5 s
    assert first.tokens_per_second == pytest.approx(30 / 1.75)
    assert first.whole_tokens_per_second == pytest.approx(33 / 3.25)
    assert (first.tau, first.answers, first.tokens) == (1.0, 3, 33)


def test_tau_is_the_mean_delivery_after_the_first():
    found = [Sample("q", (0,), A, block(answer([0.1, 0.2, 0.3], tokens=[1, 3, 2])))]
    (row,) = summarise(found, [A], plain="a")
    assert row.tau == 2.5
    assert row.inter_token_latency is not None
    assert row.inter_token_latency.p50 == pytest.approx(0.1)


def test_equal_outputs_are_those_of_plain_decoding():
    same, other = tuple(range(11)), (9, *range(1, 11))
    found = [*samples(A, [10.0, 10.0], ids=same), Sample("q", (0,), B, block(steady(10.0, ids=same)))]
    found.append(Sample("q", (1,), B, block(steady(10.0, ids=other))))
    rows = summarise(found, [A, B], plain="a")
    assert [row.equal_outputs for row in rows] == [1.0, 0.5]


def test_streams_are_summed_over_the_whole_time_and_compared_with_one_stream():
    one = block(steady(10.0), steady(10.0))
    one = type(one)(one.answers, 3.0, (), 0.0)  # one after the other: 2 * 1.5 s
    both = block(steady(10.0), steady(10.0))
    (single, double) = summarise([Sample("q", (0, 1), A, one), Sample("q", (0, 1), A8, both)], [A, A8], plain="a")
    assert single.tokens_per_second == pytest.approx(10.0)
    assert single.ratio is not None
    assert single.ratio.pairs == 2
    assert double.tokens_per_second == pytest.approx(22 / 1.5)
    assert double.ratio is not None
    assert double.ratio.pairs == 1
    assert double.ratio_to_one_stream is not None
    assert double.ratio_to_one_stream.ratio == pytest.approx(2.0)
    assert single.ratio_to_one_stream is None


def test_several_sets_have_a_row_over_all():
    found = [*samples(A, [10.0], questions="x"), *samples(A, [10.0], questions="y")]
    found += [*samples(B, [20.0], questions="x"), *samples(B, [40.0], questions="y")]
    rows = summarise(found, [A, B], plain="a")
    assert [(row.questions, row.method) for row in rows] == [
        (name, method) for name in ("x", "y", ALL_SETS) for method in "ab"
    ]
    assert rows[-1].ratio is not None
    assert rows[-1].ratio.geometric_mean == pytest.approx(8**0.5)


def test_answers_of_one_token_are_no_pair_and_no_row():
    short = Sample("q", (0,), A, block(answer([0.5])))
    rows = summarise([short, *samples(B, [10.0])], [A, B], plain="a")
    assert [(row.method, row.ratio) for row in rows] == [("b", None)]


def test_noise_is_the_ratio_of_a_method_to_itself():
    again = Cell("a", 1, again=True)
    found = [*samples(A, [10.0, 10.0]), *samples(again, [11.0, 11.0])]
    ((cell, ratio),) = noise(found, [A, again])
    assert cell == again
    assert ratio.ratio == pytest.approx(1.1)
