from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from support.recorders import LONG, until

from respsd.clock import SystemClock
from respsd.errors import StorageError
from respsd.scheduling.clock_watch import ClockWatch
from respsd.scheduling.job import Job, Outcome
from respsd.scheduling.job_scheduler import JobRun, JobScheduler

DONE = Outcome("done", "well")
NEVER = 3600.0
Start = Callable[..., JobScheduler]


class Runs:
    """What the scheduler says about runs."""

    def __init__(self) -> None:
        self.all: list[JobRun] = []

    def __call__(self, run: JobRun) -> None:
        self.all.append(run)

    def verdicts(self) -> Counter[str]:
        return Counter(run.verdict for run in self.all)


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def start(runs: Runs) -> Iterator[Start]:
    started: list[JobScheduler] = []

    def make(*jobs: Job, **options: object) -> JobScheduler:
        scheduler = JobScheduler(jobs, SystemClock(), observe=runs, **options)  # type: ignore[arg-type]
        scheduler.start()
        started.append(scheduler)
        return scheduler

    yield make
    for scheduler in started:
        assert scheduler.stop(LONG)


class Held:
    """A job's run that a test holds up."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.free = threading.Semaphore(0)
        self.at_once = 0
        self.most_at_once = 0

    def __call__(self, stop: threading.Event) -> Outcome:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.begun.release()
        assert self.free.acquire(timeout=LONG)
        self.at_once -= 1
        return DONE


def test_a_job_runs_again_and_again(start: Start, runs: Runs) -> None:
    scheduler = start(Job("beat", lambda _: DONE, 0.02))
    until(lambda: runs.verdicts()["done"] >= 3)
    status = scheduler.status()["beat"]
    assert status.runs >= 3
    assert (status.last_verdict, status.last_detail, status.failures_in_a_row) == ("done", "well", 0)
    assert status.last_done_ns == status.last_finished_ns
    assert status.next_run_ns is not None


def test_the_first_run_comes_when_the_job_says(start: Start, runs: Runs) -> None:
    start(Job("soon", lambda _: DONE, NEVER, first_seconds=0.01), Job("late", lambda _: DONE, NEVER))
    until(lambda: bool(runs.all))
    assert [run.job for run in runs.all] == ["soon"]


def test_run_now_says_how_the_run_ended(start: Start) -> None:
    def fail(_: threading.Event) -> Outcome:
        raise StorageError("no room")

    scheduler = start(Job("good", lambda _: DONE, NEVER), Job("bad", fail, NEVER))
    assert scheduler.run_now("good").result(LONG) == DONE
    with pytest.raises(StorageError, match="no room"):
        scheduler.run_now("bad").result(LONG)


def test_a_job_has_one_run_at_a_time_and_a_run_that_was_due_is_made_up_for(start: Start, runs: Runs) -> None:
    held = Held()
    scheduler = start(Job("slow", held, NEVER))
    first = scheduler.run_now("slow")
    assert held.begun.acquire(timeout=LONG)
    second, third = scheduler.run_now("slow"), scheduler.run_now("slow")
    until(lambda: runs.verdicts()["delayed"] >= 1)
    held.free.release(2)
    assert [future.result(LONG) for future in (first, second, third)] == [DONE] * 3
    assert held.most_at_once == 1
    assert scheduler.status()["slow"].runs == 2  # the two that waited shared one


def test_runs_that_were_due_while_one_went_on_are_one(start: Start, runs: Runs) -> None:
    held = Held()
    scheduler = start(Job("slow", held, 0.02))
    assert held.begun.acquire(timeout=LONG)
    until(lambda: runs.verdicts()["delayed"] >= 3)
    held.free.release()
    assert held.begun.acquire(timeout=LONG)
    assert scheduler.status()["slow"].runs == 1
    held.free.release(1000)


def test_a_failure_takes_nothing_down_and_is_tried_again(start: Start, runs: Runs) -> None:
    faults: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), ZeroDivisionError("by 0"), StorageError("full")]
    other = threading.Event()

    def fail_at_first(_: threading.Event) -> Outcome:
        if faults:
            raise faults.pop()
        return DONE

    scheduler = start(
        Job("bad", fail_at_first, 0.01, retry_seconds=0.01, retry_seconds_max=0.02),
        Job("good", lambda _: other.set() or DONE, 0.02),  # type: ignore[func-returns-value]
    )
    until(lambda: runs.verdicts()["failed"] == 4 and scheduler.status()["bad"].last_verdict == "done")
    assert scheduler.status()["bad"].failures_in_a_row == 0
    other.clear()
    assert other.wait(LONG)


def test_failures_are_counted_and_the_next_run_is_put_off(start: Start) -> None:
    def fail(_: threading.Event) -> Outcome:
        raise StorageError("full")

    scheduler = start(Job("bad", fail, 0.01, first_seconds=0.01, retry_seconds=1000.0))
    until(lambda: scheduler.status()["bad"].failures_in_a_row == 1)
    until(lambda: _seconds_to_next(scheduler, "bad") > 900)
    with pytest.raises(StorageError):
        scheduler.run_now("bad").result(LONG)
    until(lambda: 1900 < _seconds_to_next(scheduler, "bad") <= 2000)
    status = scheduler.status()["bad"]
    assert (status.failures_in_a_row, status.last_verdict, status.last_detail) == (2, "failed", "full")


def test_a_failure_is_put_off_though_other_runs_were_due_meanwhile(start: Start, runs: Runs) -> None:
    free = threading.Event()

    def fail(_: threading.Event) -> Outcome:
        assert free.wait(LONG)
        raise StorageError("full")

    scheduler = start(Job("bad", fail, 0.01, first_seconds=0.0, retry_seconds=1000.0))
    until(lambda: runs.verdicts()["delayed"] >= 2)
    free.set()
    until(lambda: _seconds_to_next(scheduler, "bad") > 900)
    assert scheduler.status()["bad"].runs == 1


def test_a_run_can_say_when_the_next_one_is(start: Start) -> None:
    scheduler = start(Job("waits", lambda _: Outcome("skipped", "too early", 500.0), 0.01))
    until(lambda: 400 < _seconds_to_next(scheduler, "waits") <= 500)
    status = scheduler.status()["waits"]
    assert (status.last_verdict, status.last_done_ns, status.last_detail) == ("skipped", None, "too early")


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 10.0), (2, 20.0), (3, 40.0), (4, 60.0), (50, 60.0), (10_000, 60.0)]
)
def test_the_time_to_the_next_try_doubles_up_to_a_limit(failures: int, seconds: float) -> None:
    job = Job("x", lambda _: DONE, 5.0, retry_seconds=10.0, retry_seconds_max=60.0)
    assert job.delay_after(failures) == seconds


def test_without_a_retry_time_the_interval_doubles_and_never_falls_under_itself() -> None:
    day = 24 * 3600.0
    assert Job("x", lambda _: DONE, 3600.0).delay_after(2) == 7200.0
    assert Job("x", lambda _: DONE, 3600.0).delay_after(9) == day
    assert Job("x", lambda _: DONE, 7 * day).delay_after(1) == 7 * day


def test_stopping_tells_the_run_and_waits_for_it(start: Start, runs: Runs) -> None:
    begun = threading.Event()

    def run(stop: threading.Event) -> Outcome:
        begun.set()
        assert stop.wait(LONG)
        return DONE

    scheduler = start(Job("long", run, NEVER, first_seconds=0.0))
    assert begun.wait(LONG)
    waiting = scheduler.run_now("long")
    assert scheduler.stop(LONG)
    assert runs.verdicts()["done"] == 1
    assert waiting.cancelled()
    assert scheduler.run_now("long").cancelled()
    assert scheduler.stop(LONG)


def test_a_run_that_does_not_end_is_given_up_and_keeps_no_process_alive(runs: Runs) -> None:
    held = Held()
    scheduler = JobScheduler([Job("hangs", held, NEVER, first_seconds=0.0)], SystemClock(), observe=runs)
    scheduler.start()
    assert held.begun.acquire(timeout=LONG)
    assert not scheduler.stop(0.01)
    [thread] = [each for each in threading.enumerate() if each.name == "job-hangs"]
    assert thread.daemon
    held.free.release()
    assert scheduler.stop(LONG)


def test_a_clock_that_is_set_back_holds_no_run_up(start: Start) -> None:
    scheduler = start(Job("hourly", lambda _: DONE, NEVER))
    before = scheduler.status()["hourly"].next_run_ns
    scheduler._clock_jumped(-timedelta(days=1).total_seconds())
    after = scheduler.status()["hourly"].next_run_ns
    assert before is not None
    assert after is not None
    assert before - after == pytest.approx(86_400e9, rel=1e-6)


def test_a_clock_that_is_set_forward_makes_what_is_due_run(start: Start) -> None:
    scheduler = start(Job("hourly", lambda _: DONE, NEVER))
    before = scheduler.status()["hourly"].next_run_ns
    scheduler._clock_jumped(+7200.0)
    assert scheduler.status()["hourly"].next_run_ns == before


class SettableClock:
    def __init__(self) -> None:
        self.wall, self.steady = 10**18, 0

    def time_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.steady


def test_only_a_clock_that_was_set_is_a_jump() -> None:
    clock, jumps = SettableClock(), []
    watch = ClockWatch(clock, jumps.append)
    clock.wall, clock.steady = clock.wall + 60 * 10**9, clock.steady + 60 * 10**9
    watch.look()
    clock.wall += 10**9  # a time service's correction
    watch.look()
    assert jumps == []
    clock.wall -= 3600 * 10**9
    watch.look()
    watch.look()
    assert jumps == [-3600.0]


def _seconds_to_next(scheduler: JobScheduler, name: str) -> float:
    next_ns = scheduler.status()[name].next_run_ns
    assert next_ns is not None
    return (next_ns - SystemClock().time_ns()) / 1e9
