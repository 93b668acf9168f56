from __future__ import annotations

import random
import threading

import pytest
from support.engines import load_tiny

from respsd.bench.scaling.measuring import Point, PointTime, growth, measure_scaling, points
from respsd.control.action import OFF, Action
from respsd.engine.loop import LoopLimits
from respsd.errors import InvalidRequest

TREE = Action(8, 3, 3)


def test_points_are_contexts_alone_and_streams_at_the_shortest():
    assert points([OFF], [16, 64], [1, 2], 16) == [Point(OFF, 16, 1), Point(OFF, 64, 1), Point(OFF, 16, 2)]


def test_every_point_gets_its_steps_and_no_stream_is_left(monkeypatch):
    wanted = points([OFF, TREE], [16, 48], [1, 3], 16)
    told: list[int] = []
    times = measure_scaling(
        load_tiny(),
        wanted,
        steps=3,
        repeats=2,
        limits=LoopLimits(prefill_chunk=32),
        rng=random.Random(0),
        progress=told.append,
    )
    assert [time.point for time in times] == wanted
    assert [time.steps for time in times] == [6] * len(wanted)
    for time in times:
        assert 0 < time.p10 <= time.p50 <= time.p90
        assert time.verify > 0
        assert (time.draft > 1e-3 * time.p50) or time.point.action.is_off
    assert len(told) == 2 * len(wanted)
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


def test_a_context_that_does_not_fit_is_named():
    with pytest.raises(InvalidRequest, match="contexts: 250"):
        measure_scaling(
            load_tiny(), [Point(OFF, 250, 1)], steps=3, repeats=1, limits=LoopLimits(), rng=random.Random(0)
        )


def test_growth_is_the_line_through_the_medians():
    def at(context, streams, p50):
        return PointTime(Point(OFF, context, streams), 3, p50, p50, p50, 0.0, p50, 0.0)

    times = [at(500, 1, 11.0), at(1000, 1, 12.0), at(2000, 1, 14.0), at(500, 2, 13.0), at(500, 4, 17.0)]
    (by_context,) = growth(times, "context", 500)
    assert (by_context.fixed_ms, by_context.ms_per_unit) == (pytest.approx(10.0), pytest.approx(2.0))
    assert by_context.residual == pytest.approx(0.0)
    (by_streams,) = growth(times, "streams", 500)
    assert (by_streams.fixed_ms, by_streams.ms_per_unit) == (pytest.approx(9.0), pytest.approx(2.0))
    bent = [at(500, 1, 10.0), at(1000, 1, 10.0), at(1500, 1, 16.0)]
    assert growth(bent, "context", 500)[0].residual > 0.1
