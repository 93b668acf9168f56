"""The queue: order and head starts, bounds, time limits and deadlines, and what cannot be served in time."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respsd.engine.queue import QueueLimits, RequestQueue, StartRate, Waiting
from respsd.engine.request import GenerationRequest, Priority, StoppingParams
from respsd.errors import DeadlineExceeded, Overloaded, QueueTooSlow

SECOND = 1_000_000_000
_numbers = itertools.count()


def entry(
    at: float = 0.0,
    priority: Priority = Priority.NORMAL,
    *,
    prompt: int = 3,
    budget: int = 7,
    deadline: float | None = None,
    request_id: str | None = None,
) -> Waiting:
    """A request that came `at` some second; its prompt and budget are 10 tokens unless said otherwise."""
    request = GenerationRequest(
        request_id=request_id or f"r{next(_numbers)}",
        prompt_ids=tuple(range(prompt)),
        stopping=StoppingParams(max_new_tokens=budget),
        priority=priority,
        deadline_ns=None if deadline is None else round(deadline * SECOND),
    )
    return Waiting(request, lambda _event: None, round(at * SECOND), 0)


def drained(queue: RequestQueue) -> list[Waiting]:
    """Everything in the order in which it starts."""
    order = []
    while (first := queue.first()) is not None:
        queue.start(first, 0)
        order.append(first)
    return order


def test_equals_start_in_the_order_of_their_arrival():
    queue, entries = RequestQueue(QueueLimits()), [entry(at=1.0) for _ in range(5)]
    for each in entries:
        queue.add(each)
    assert drained(queue) == entries


def test_a_step_of_priority_is_worth_its_head_start_and_no_more():
    """With 10 s a step: high at 19 s goes before normal at 10 s, behind normal at 8 s, and before low at 0 s."""
    queue = RequestQueue(QueueLimits(head_start_seconds=10.0))
    low, early, late = entry(0.0, Priority.LOW), entry(8.0), entry(10.0)
    high = entry(19.0, Priority.HIGH)
    for each in (low, early, late, high):
        queue.add(each)
    assert drained(queue) == [early, high, low, late]


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 100), st.sampled_from(Priority), st.booleans()), min_size=1, max_size=60),
    head_start=st.floats(0, 30),
)
def test_nothing_is_overtaken_by_what_came_later_than_the_head_start(arrivals, head_start):
    """Whatever arrives, and however starts and arrivals mix: that is what keeps any request from starving."""
    queue = RequestQueue(QueueLimits(head_start_seconds=head_start))
    came: dict[str, Waiting] = {}
    for at, priority, start_one in sorted(arrivals, key=lambda arrival: arrival[0]):
        new = entry(at, priority)
        queue.add(new)
        came[new.request.request_id] = new
        if not start_one:
            continue
        started = queue.first()
        assert started is not None
        queue.start(started, round(at * SECOND))
        del came[started.request.request_id]
        for other in came.values():
            steps = started.request.priority - other.request.priority
            later = started.submitted_ns - other.submitted_ns
            assert later <= max(0, steps) * head_start * SECOND + 1
    assert {each.request.request_id for each in drained(queue)} == came.keys()


def test_requests_and_tokens_are_bounded_and_the_refusal_names_the_setting():
    queue = RequestQueue(QueueLimits(max_requests=3, max_tokens=25))
    queue.add(entry())
    queue.add(entry())
    with pytest.raises(Overloaded, match=r"30 of 25, set by admission\.max_waiting_tokens") as refused:
        queue.add(entry())
    assert refused.value.reason == "queue_tokens"
    queue.add(entry(prompt=1, budget=4))
    assert (len(queue), queue.load(0).tokens) == (3, 25)
    with pytest.raises(Overloaded, match=r"3 of 3, set by engine\.max_waiting") as refused:
        queue.check_room()
    assert refused.value.reason == "queue_requests"
    drained(queue)
    assert queue.load(0).tokens == 0


def test_a_queue_full_of_tokens_says_so_before_anything_is_known_of_a_request():
    queue = RequestQueue(QueueLimits(max_tokens=10))
    queue.check_room()
    queue.add(entry())
    with pytest.raises(Overloaded, match="max_waiting_tokens"):
        queue.check_room()


def test_one_request_may_always_wait_however_large():
    queue = RequestQueue(QueueLimits(max_tokens=5))
    queue.add(entry(budget=1000))
    assert len(queue) == 1


def test_what_waited_too_long_is_given_up_with_the_limit_and_a_time_to_try_again():
    queue = RequestQueue(QueueLimits(max_seconds=5.0))
    first, second = entry(at=0.0), entry(at=3.0)
    queue.add(first)
    queue.add(second)
    assert queue.overdue(round(4.9 * SECOND)) == []
    ((given_up, error),) = queue.overdue(5 * SECOND)
    assert given_up is first
    assert isinstance(error, QueueTooSlow)
    assert str(error) == (
        "the request waited 5.0 s for a place, to the limit, admission.max_queue_seconds = 5; try again later"
    )
    assert (error.reason, error.retry_after_seconds) == ("queue_time", 1.0)
    assert [each for each, _ in queue.overdue(8 * SECOND)] == [second]
    assert queue.first() is None


def test_a_deadline_that_passes_in_the_queue_takes_the_request_out():
    queue = RequestQueue(QueueLimits(max_seconds=60.0))
    patient, hurried = entry(at=0.0), entry(at=0.0, deadline=2.0)
    queue.add(patient)
    queue.add(hurried)
    ((given_up, error),) = queue.overdue(2 * SECOND)
    assert given_up is hurried
    assert isinstance(error, DeadlineExceeded)
    assert error.reason == "deadline"
    assert drained(queue) == [patient]


def test_cancelled_requests_leave_their_tokens():
    queue = RequestQueue(QueueLimits())
    kept, gone = entry(request_id="kept"), entry(request_id="gone")
    queue.add(kept)
    queue.add(gone)
    queue.cancel("unknown")
    queue.cancel("gone")
    assert (len(queue), queue.load(0).tokens) == (1, 10)
    assert queue.cancelled() == [gone]
    assert queue.cancelled() == []
    assert queue.clear() == [kept]
    assert len(queue) == 0
    assert queue.is_empty


def test_a_cancelled_request_makes_room_before_its_end_is_told():
    queue = RequestQueue(QueueLimits(max_requests=1))
    first, second = entry(request_id="first"), entry(request_id="second")
    queue.add(first)
    queue.cancel("first")
    assert (len(queue), queue.is_empty) == (0, False)
    queue.add(second)
    assert queue.cancelled() == [first]
    assert queue.first() is second


def test_what_is_cancelled_while_the_engine_does_not_move_is_bounded():
    queue = RequestQueue(QueueLimits(max_requests=3))
    for number in range(6):
        queue.add(entry(request_id=f"{number}"))
        queue.cancel(f"{number}")
    with pytest.raises(Overloaded, match=r"3 of 3, set by engine\.max_waiting"):
        queue.check_room()
    assert len(queue.cancelled()) == 6
    queue.check_room()


@pytest.mark.parametrize("take", [lambda queue, entry: queue.start(entry, 0), RequestQueue.drop])
def test_a_request_cancelled_while_it_starts_ends_with_who_took_it(take):
    """Or its end would be told twice."""
    queue, other = RequestQueue(QueueLimits()), entry(request_id="other")
    queue.add(entry(request_id="starting"))
    queue.add(other)
    starting = queue.first()
    assert starting is not None
    queue.cancel("starting")
    queue.cancel("other")
    take(queue, starting)
    assert queue.cancelled() == [other]


def test_the_load_tells_of_priorities_age_and_limits():
    queue = RequestQueue(QueueLimits(max_requests=9, max_tokens=99, max_seconds=60.0))
    queue.add(entry(1.0, Priority.LOW))
    queue.add(entry(2.0, Priority.HIGH))
    queue.add(entry(2.5, Priority.HIGH))
    load = queue.load(4 * SECOND)
    assert {priority: load.by_priority.get(priority, 0) for priority in Priority} == {
        Priority.LOW: 1, Priority.NORMAL: 0, Priority.HIGH: 2,
    }  # fmt: skip
    assert (load.tokens, load.oldest_seconds, load.expected_seconds) == (30, 3.0, None)
    assert (load.max_requests, load.max_tokens, load.max_seconds) == (9, 99, 60.0)
    assert RequestQueue(QueueLimits()).load(0).expected_seconds == 0.0


def with_backlog(limits: QueueLimits, waiting: int, interval: float = 1.0, starts: int = 17) -> RequestQueue:
    """A queue of so many requests, of which one started in each interval before; the last at 100 s."""
    queue = RequestQueue(limits)
    for _ in range(waiting + starts):
        queue.add(entry(at=0.0))
    for number in range(starts):
        first = queue.first()
        assert first is not None
        queue.start(first, round((100.0 - (starts - 1 - number) * interval) * SECOND))
    return queue


def test_what_could_not_start_in_time_at_twice_the_measured_rate_is_refused_at_once():
    """30 ahead, one start a second: it is 15 s away at best, so 16 s of time will do and 14 s will not."""
    queue = with_backlog(QueueLimits(), waiting=30)
    with pytest.raises(
        QueueTooSlow, match=r"30 requests are ahead .* 1 a second.* about 30 s; it has 14\.0 s until its"
    ):
        queue.add(entry(at=100.0, deadline=114.0))
    queue.add(entry(at=100.0, deadline=116.0))


def test_the_wait_is_told_by_the_measured_rate():
    queue = with_backlog(QueueLimits(max_tokens=570), waiting=40, interval=0.5)
    assert queue.load(100 * SECOND).expected_seconds == pytest.approx(20.0)
    with pytest.raises(Overloaded) as refused:
        queue.add(entry(budget=200))
    assert refused.value.retry_after_seconds == pytest.approx(10.0)


def test_a_high_priority_counts_only_those_that_go_before_it():
    queue = with_backlog(QueueLimits(head_start_seconds=1000.0), waiting=30)
    queue.add(entry(at=100.0, priority=Priority.HIGH, deadline=101.0))
    assert len(queue) == 31


def test_the_queues_own_time_limit_refuses_likewise():
    queue = with_backlog(QueueLimits(max_seconds=14.0), waiting=30)
    with pytest.raises(QueueTooSlow, match=r"until the limit, admission\.max_queue_seconds = 14"):
        queue.add(entry(at=100.0))


@pytest.mark.parametrize("starts", [1, 16])
def test_few_starts_are_no_measurement(starts):
    queue = with_backlog(QueueLimits(), waiting=30, starts=starts)
    queue.add(entry(at=100.0, deadline=100.1))


def test_hope_may_be_left_to_the_client():
    queue = with_backlog(QueueLimits(refuse_hopeless=False), waiting=30)
    queue.add(entry(at=100.0, deadline=100.1))


def test_an_empty_queue_forgets_the_rate():
    """Starts of an idle engine are as slow as arrivals are: they say nothing of how fast it could be."""
    queue = with_backlog(QueueLimits(), waiting=1)
    assert queue.load(0).expected_seconds is not None
    drained(queue)
    queue.add(entry(at=200.0))
    assert queue.load(0).expected_seconds is None


def test_a_queue_that_is_emptied_by_cancels_forgets_the_rate_too():
    queue = with_backlog(QueueLimits(), waiting=3)
    assert queue.load(0).expected_seconds is not None
    queue.clear()
    queue.add(entry(at=200.0))
    assert queue.load(0).expected_seconds is None


def test_starts_at_one_moment_have_no_rate():
    rate = StartRate()
    for _ in range(30):
        rate.started(5)
    assert rate.interval_seconds is None


def test_the_entries_ranks_do_not_depend_on_their_content():
    """Two of the same rank are ordered by arrival, though neither requests nor callbacks can be compared."""
    queue = RequestQueue(QueueLimits())
    one = entry(at=1.0)
    two = dataclasses.replace(one)
    queue.add(one)
    queue.add(two)
    assert drained(queue)[0] is one
