"""When functions are recorded, what replaying gives, and what happens where recording fails."""

from __future__ import annotations

import pytest
import torch
from structlog.testing import capture_logs
from support.graphs import Machine
from torch import Tensor

from respsd.engine.static.capture import Eager, Recorded, Tensors


def double(x: Tensor) -> Tensors:
    return (2 * x,)


def negate(x: Tensor) -> Tensors:
    return (-x,)


def number(value: float) -> Tensors:
    return (torch.full((2,), value),)


def test_a_function_is_recorded_once_it_came_three_times_and_replayed_from_then_on():
    machine = Machine()
    recorded = Recorded(machine.record)
    for value in (1.0, 2.0, 3.0, 4.0):
        (output,) = recorded.run("double", double, number(value))
        assert output.tolist() == [2 * value] * 2
        assert len(machine.graphs) == (value >= 3)
    assert machine.graphs[0].replays == 2


def test_what_was_given_stays_when_another_recording_uses_the_same_memory():
    recorded = Recorded(Machine().record)
    for _ in range(3):
        (first,) = recorded.run("double", double, number(1.0))
        (second,) = recorded.run("negate", negate, number(5.0))
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [-5.0, -5.0])


def test_the_least_recently_used_recording_goes_first():
    machine = Machine()
    recorded = Recorded(machine.record, most=2)
    for key in ("a", "b", "a", "c"):
        for _ in range(3):
            recorded.run(key, double, number(1.0))
    assert len(machine.graphs) == 3
    recorded.run("a", double, number(1.0))
    assert machine.graphs[0].replays == 3 - 2 + 3 + 1  # used after b, so b went
    recorded.run("b", double, number(1.0))
    assert len(machine.graphs) == 3


def test_a_recording_that_fails_is_logged_and_the_functions_run_as_they_are():
    recorded = Recorded(Machine(broken=True).record)
    with capture_logs() as logs:
        outputs = [recorded.run("double", double, number(3.0))[0].tolist() for _ in range(5)]
    assert outputs == [[6.0, 6.0]] * 5
    assert [line["event"] for line in logs] == ["graph_recording_failed"]
    assert "capturing" in logs[0]["fault"]


def test_eager_runs_everything_as_it_is():
    assert Eager().run("double", double, number(3.0))[0].tolist() == [6.0, 6.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_graphs_give_what_the_function_gives():
    from respsd.engine.static.capture import cuda_graphs

    graphs = cuda_graphs()
    for value in (1.0, 2.0, 3.0, 4.0):
        (output,) = graphs.run("double", double, (torch.full((2,), value, device="cuda"),))
        assert output.tolist() == [2 * value] * 2
