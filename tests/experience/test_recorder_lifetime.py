from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from support.recorders import LONG, QUICK, Gate, MakeRequest, MakeWindow, Start, count, until

from respsd.errors import StorageError
from respsd.experience.database import open_log_for_reading
from respsd.experience.models import RequestRow, TransitionRow
from respsd.experience.recorder import RecorderSettings


def test_closing_writes_what_is_left_and_takes_nothing_more(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start(RecorderSettings(batch_seconds=60.0))  # closing does not wait for more requests
    for number in range(3):
        recorder.record(make_request(f"r-{number}"), [])
    assert recorder.close(LONG)
    assert count(path, "requests") == 3
    assert not recorder.record(make_request("late"), [])
    assert recorder.status().dropped_requests == {"closed": 1}
    assert recorder.close(LONG)
    assert not path.with_name("transitions.db-wal").exists()  # the connection was closed, not left


def test_closing_gives_up_at_its_limit_and_counts_what_it_dropped(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    gate = Gate(path)
    recorder = start(replace(QUICK, retry_seconds=60.0, retry_seconds_max=60.0), gate.fail)
    recorder.record(make_request("in-hand"), [make_window()])
    gate.reached.wait(LONG)
    recorder.record(make_request("waiting"), [])
    assert not recorder.close(0.1)
    until(lambda: recorder.status().pending_rows == 0)
    status = recorder.status()
    assert (status.dropped_requests, status.dropped_rows, status.pending_rows) == ({"closed": 2}, {"closed": 3}, 0)


def test_flushing_nothing_is_done_at_once(start: Start) -> None:
    assert start().flush(0.0)


def test_many_threads_may_record_at_once(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    recorder = start(RecorderSettings(batch_seconds=0.0))

    def work(worker: int) -> None:
        for number in range(25):
            recorder.record(make_request(f"{worker}-{number}"), [make_window()])

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.flush(LONG)
    assert (count(path, "requests"), count(path, "transitions")) == (100, 100)


def test_reading_all_the_while_never_meets_a_lock(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    """Public reports of "database is locked" in spite of WAL: reads that turn into writes, and open readers."""
    recorder = start()
    recorder.record(make_request("first"), [make_window()])
    recorder.flush(LONG)
    done, faults, reads = threading.Event(), [], []

    def read() -> None:
        engine = open_log_for_reading(path)
        while not done.is_set():
            try:
                with engine.begin() as connection:
                    windows = connection.execute(select(TransitionRow.request_row)).all()
                    requests = connection.execute(select(RequestRow.id)).all()
                    reads.append(len(windows) == len(requests))  # one snapshot, whole requests
            except Exception as fault:
                faults.append(fault)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(150):
        recorder.record(make_request(f"r-{number}"), [make_window()])
        if number % 10 == 0:
            recorder.flush(LONG)
    assert recorder.flush(LONG)
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert reads
    assert all(reads)
    assert recorder.status().state == "ok"


def test_other_work_takes_its_turn_with_the_writers_connection(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    """However many rows come: through a connection of its own it might never get the lock."""
    recorder, done = start(RecorderSettings(batch_seconds=0.0)), threading.Event()

    def flood() -> None:
        number = 0
        while not done.is_set():
            time.sleep(0.001)
            if recorder.status().pending_rows < 2000:
                recorder.record(make_request(f"r-{number}"), [make_window()])
                number += 1

    writer = threading.Thread(target=flood)
    writer.start()
    try:
        for _ in range(20):
            assert recorder.between_batches(_count_and_write, LONG) >= 0
    finally:
        done.set()
        writer.join()
    assert recorder.flush(LONG)
    assert recorder.status().dropped_requests == {}


def _count_and_write(engine: Engine) -> int:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE requests SET steps = steps WHERE id = 1")
        return int(connection.exec_driver_sql("SELECT count(*) FROM requests").scalar_one())


def test_work_that_fails_fails_for_its_owner_alone(path: Path, start: Start, make_request: MakeRequest) -> None:
    recorder = start()

    def fail(_: Engine) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorder.between_batches(fail, LONG)
    recorder.record(make_request(), [])
    assert recorder.flush(LONG)
    assert count(path, "requests") == 1


def test_work_is_given_up_where_the_writer_cannot_come_to_it(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    gate = Gate(path)
    recorder = start(replace(QUICK, retry_seconds=60.0, retry_seconds_max=60.0), gate.fail)
    recorder.record(make_request(), [])
    gate.reached.wait(LONG)
    until(lambda: recorder.status().state == "degraded")
    with pytest.raises(StorageError, match="the disk is on fire"):
        recorder.between_batches(_count_and_write, 0.01)
    recorder.close(0.1)
    with pytest.raises(StorageError, match="closed"):
        start().between_batches(_count_and_write, 0.0)
