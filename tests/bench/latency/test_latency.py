"""The latency measurement itself, on the tiny pair."""

from __future__ import annotations

import random
import threading

import pytest
from support.engines import load_tiny
from support.models import long_target

from respsd.bench.latency.measuring import Gaps, Latency, LatencyPlan, measure_latency
from respsd.control.action import OFF, Action
from respsd.engine.loop import LoopLimits
from respsd.errors import InvalidRequest


@pytest.mark.parametrize("action", [OFF, Action(8, 3, 3)])
def test_every_phase_has_its_gaps_and_no_stream_is_left(action):
    told: list[int] = []
    plan = LatencyPlan(action, streams=3, context=8, arriving=120, steps=4, repeats=2)
    models = load_tiny(target=long_target())  # so that no stream ends, however late this thread is
    found = measure_latency(models, plan, LoopLimits(), random.Random(0), told.append)
    assert found.steady.count >= 3 * 2 * 3  # 3 streams, 2 times 4 deliveries
    assert found.arriving.count >= 3 * 2
    assert found.joining.count >= 3
    for gaps in (found.joining, found.steady, found.arriving):
        assert 0 < gaps.times.p50 <= gaps.times.p99 <= gaps.longest
    assert found.first_token > 0
    assert told == [1, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


def test_ratios_are_to_the_steady_median():
    steady, arriving = Gaps.of([0.1] * 99 + [0.4]), Gaps.of([0.15] * 100)
    latency = Latency(steady, steady, arriving, first_token=1.0)
    assert latency.spread == pytest.approx(0.103 / 0.1)
    assert latency.delay == pytest.approx(1.5)
    assert latency.steady.longest == 0.4


@pytest.mark.parametrize(("context", "arriving"), [(240, 100), (8, 256)])
def test_what_does_not_fit_the_models_context_is_named(context, arriving):
    plan = LatencyPlan(OFF, streams=1, context=context, arriving=arriving, steps=20, repeats=2)
    with pytest.raises(InvalidRequest, match="256 tokens"):
        measure_latency(load_tiny(), plan, LoopLimits(), random.Random(0))
