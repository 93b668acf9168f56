from __future__ import annotations

import math

from support.engines import load_tiny

from respsd.bench.questions import QuestionSet
from respsd.bench.speed import measure
from respsd.control.action import OFF, Action

SETS = [QuestionSet("a", ((1, 40, 17, 99), (1, 200), (1, 77, 5))), QuestionSet("b", ((8, 9),))]


def test_every_set_and_action_is_measured_against_the_first_action():
    calls: list[None] = []
    results = measure(load_tiny(), SETS, [OFF, Action(16, 4, 4)], 24, progress=lambda: calls.append(None))
    assert len(calls) == 4
    assert [(r.questions, str(r.action)) for r in results] == [
        ("a", "off"),
        ("a", "16,4,4"),
        ("b", "off"),
        ("b", "16,4,4"),
    ]
    for result in results:
        assert result.tokens_per_second > 0
        assert result.equal_outputs == 1.0
        assert result.ratio_low <= result.ratio * (1 + 1e-9)
        assert result.ratio <= result.ratio_high * (1 + 1e-9)
    off, tree = results[0], results[1]
    assert (off.ratio, off.tau) == (1.0, 1.0)
    assert tree.tau > 1.3
    assert math.isfinite(tree.ratio)
