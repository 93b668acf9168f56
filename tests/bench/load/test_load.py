from __future__ import annotations

import random

import pytest
from support.serving import served

from respsd.bench.load.arrivals import parse_rates, poisson_arrivals
from respsd.bench.load.report import Objectives, load_row
from respsd.bench.load.sending import Outcome, run_load
from respsd.engine.stub import StubEngine
from respsd.errors import InvalidRequest
from respsd_client import AsyncClient


def test_arrivals_are_a_poisson_process_of_the_seed():
    arrivals = poisson_arrivals(5.0, 20_000, random.Random(3))
    assert arrivals == poisson_arrivals(5.0, 20_000, random.Random(3))
    gaps = [later - earlier for earlier, later in zip((0.0, *arrivals), arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.2, rel=0.03)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(0.04, rel=0.06)
    assert sum(gap > 0.4 for gap in gaps) / len(gaps) == pytest.approx(0.1353, abs=0.01)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1,,2", "inf", "nan"])
def test_rates_are_positive_numbers(text):
    with pytest.raises(InvalidRequest, match="rate"):
        parse_rates(text)
    assert parse_rates("0.5,2") == [0.5, 2.0]


def outcome(due=1.0, times=(1.5, 1.6, 1.9), ended=2.0, code="OK") -> Outcome:
    return Outcome(due=due, sent=due + 0.01, ended=ended, code=code, deliveries=[(at, 2) for at in times])


def test_latencies_count_from_when_a_request_was_due():
    one = outcome()
    assert one.time_to_first_token == pytest.approx(0.5)
    assert one.seconds == pytest.approx(1.0)
    assert one.gaps == pytest.approx([0.1, 0.3])
    assert one.seconds_per_token == pytest.approx(0.4 / 4)
    assert outcome(times=()).time_to_first_token is None
    assert outcome(times=(1.5,)).seconds_per_token == 0.0


@pytest.mark.parametrize(
    ("objectives", "met"),
    [
        (Objectives(), True),
        (Objectives(first_token=0.51), True),
        (Objectives(first_token=0.49), False),
        (Objectives(per_token=0.11), True),
        (Objectives(per_token=0.09), False),
        (Objectives(whole=1.01), True),
        (Objectives(first_token=0.51, whole=0.99), False),
    ],
)
def test_a_good_request_keeps_every_objective(objectives, met):
    assert objectives.met_by(outcome()) is met
    assert not objectives.met_by(outcome(code="UNAVAILABLE"))
    assert not objectives.met_by(outcome(times=()))


def test_a_row_by_hand():
    from respsd.bench.load.sending import LoadRun

    refused = outcome(times=(), ended=1.1, code="RESOURCE_EXHAUSTED")
    late = outcome(times=(3.0, 3.1), ended=4.0)
    row = load_row(LoadRun(2.0, (outcome(), refused, late), 3), Objectives(first_token=1.0))
    assert (row.offered, row.requests, row.most_in_flight) == (2.0, 3, 3)
    assert row.answered == pytest.approx(2 / 4)
    assert row.goodput == pytest.approx(1 / 4)
    assert row.good_share == pytest.approx(1 / 3)
    assert row.tokens_per_second == pytest.approx(10 / 4)
    assert row.refusals == {"RESOURCE_EXHAUSTED": 1}
    assert row.time_to_first_token is not None
    assert row.time_to_first_token.p50 == pytest.approx(1.25)
    assert row.latest_send == pytest.approx(0.01)


async def test_requests_are_sent_on_schedule_whether_or_not_others_are_answered():
    """The engine stands still until all requests have arrived: a loop that waited for answers would never end."""
    engine = StubEngine(max_running=8)
    arrivals = (0.01, 0.02, 0.03, 0.04)
    async with served(engine) as server, AsyncClient(server.address) as client:
        engine.gate.close()
        done = 0

        def count():
            nonlocal done
            done += 1

        import asyncio

        running = asyncio.create_task(
            run_load(client, ["a", "b"], 100.0, arrivals, {"max_new_tokens": 5}, timeout=60.0, progress=count)
        )
        async with asyncio.timeout(60):
            while engine.load().waiting + engine.load().running < 4:
                await asyncio.sleep(0.005)
        engine.gate.open()
        run = await running
    assert run.most_in_flight == 4
    assert done == 4
    assert [outcome.code for outcome in run.outcomes] == ["OK"] * 4
    assert [outcome.tokens for outcome in run.outcomes] == [5] * 4
    assert all(outcome.sent >= outcome.due for outcome in run.outcomes)
    # The first was due before the last arrived, and waited for it.
    assert run.outcomes[0].time_to_first_token >= 0.03


async def test_failures_are_counted_by_their_code():
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client:
        refused = await run_load(client, ["a"], 1.0, (0.0, 0.01), {"temperature": -1.0}, timeout=60.0)
        engine.gate.close()
        slow = await run_load(client, ["a"], 1.0, (0.0,), {}, timeout=0.2)
        engine.gate.open()
    assert load_row(refused, Objectives()).refusals == {"INVALID_ARGUMENT": 2}
    assert load_row(slow, Objectives()).refusals == {"DEADLINE_EXCEEDED": 1}
    assert load_row(slow, Objectives()).time_to_first_token is None
