from __future__ import annotations

import pytest
from support.bench_fakes import answer

from respsd.bench.comparison import answers
from respsd.bench.comparison.answers import Batch, Delivery, Stopwatch


def test_times_of_an_answer_by_hand():
    one = answer([0.5, 0.7, 1.0], tokens=[1, 3, 2])
    assert one.time_to_first_token == 0.5
    assert one.seconds == 1.0
    assert one.decode_seconds == 0.5
    assert one.decoded_tokens == 5
    assert one.gaps == pytest.approx([0.2, 0.3])


def test_a_first_delivery_of_several_tokens_is_not_decoding():
    assert answer([0.5], tokens=[4]).decoded_tokens == 0


def test_a_batch_lasts_as_long_as_its_longest_stream():
    assert Batch((answer([1.0, 2.0]), answer([1.0, 3.5]))).seconds == 3.5


def test_the_stopwatch_counts_from_the_hand_over(monkeypatch):
    times = iter([10.25, 10.5])
    monkeypatch.setattr(answers, "now", lambda: next(times))
    watch = Stopwatch(10.0)
    watch.deliver([4])
    watch.deliver([])
    watch.deliver((5, 6))
    found = watch.answer()
    assert found.token_ids == (4, 5, 6)
    assert found.deliveries == (Delivery(0.25, 1), Delivery(0.5, 2))
