from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from support.recorders import LONG, NOON, QUICK, Gate, MakeRequest, MakeWindow, Start, count, stored, until

from respsd.control.action import OFF, Action
from respsd.control.controller import Decision
from respsd.experience.database import OpenLog, open_log
from respsd.experience.recorder import RecorderSettings
from respsd.experience.rows import Origin, request_values, transition_values


def test_rows_come_back_as_they_were_recorded(
    start: Start, path: Path, origin: Origin, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    request = make_request(policy_version_first=None)
    log_prob = math.log(math.nextafter(1 / 177, 1))  # every bit of the double counts
    windows = [
        make_window(0, decision=Decision(Action(32, 5, 8), log_prob, "learner", 2, 17, "7ab1e0")),
        make_window(1, decision=Decision(OFF, 0.0, "fixed"), applied=OFF, observation=b"", truncated=True),
    ]
    recorder = start()
    assert recorder.record(request, windows)
    assert recorder.flush(LONG)
    (request_row,), window_rows = stored(path)
    assert request_row == request_values(request, origin) | {"id": 1}
    assert window_rows == [transition_values(each, 1) | {"id": number} for number, each in enumerate(windows, 1)]
    assert window_rows[0]["log_prob"] == log_prob
    assert window_rows[1]["policy_version"] is None
    assert (window_rows[1]["requested_total_tokens"], window_rows[1]["applied_top_k"]) == (1, 0)


def test_windows_belong_to_their_own_request(
    start: Start, path: Path, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    recorder = start(RecorderSettings(batch_seconds=0.05))  # several in one transaction
    for number in range(5):
        recorder.record(make_request(f"r-{number}"), [make_window(window) for window in range(number)])
    recorder.flush(LONG)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT request_id, count(t.id) FROM requests r LEFT JOIN transitions t ON request_row = r.id GROUP BY 1"
        ).fetchall()
    assert rows == [(f"r-{number}", number) for number in range(5)]
    status = recorder.status()
    assert (status.state, status.written_requests, status.written_rows, status.pending_rows) == ("ok", 5, 15, 0)


def test_one_transaction_takes_many_requests_but_no_more_than_its_rows(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    gate, begun = Gate(path), []

    def opener() -> OpenLog:
        opened = gate.hold()
        event.listen(opened.engine, "begin", lambda _: begun.append(1))
        return opened

    recorder = start(RecorderSettings(batch_seconds=0.0, batch_rows=10), opener)
    recorder.record(make_request("first"), [])
    gate.reached.wait(LONG)  # the writer has the first one alone
    for number in range(6):
        recorder.record(make_request(f"r-{number}"), [make_window(0), make_window(1)])  # 3 rows each
    recorder.record(make_request("large"), [make_window(number) for number in range(30)])
    gate.opened.set()
    assert recorder.flush(LONG)
    assert len(begun) == 1 + 2 + 1  # first; 3 + 3 of three rows; the large one alone
    assert count(path, "transitions") == 6 * 2 + 30


def test_a_full_queue_drops_whole_requests_and_counts_them(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    gate = Gate(path)
    recorder = start(replace(QUICK, queue_rows=10), gate.hold)
    assert recorder.record(make_request("in-hand"), [make_window(number) for number in range(3)])
    gate.reached.wait(LONG)
    assert recorder.record(make_request("fits"), [make_window(number) for number in range(5)])
    assert not recorder.record(make_request("too-much"), [])
    assert not recorder.record(make_request("far-too-much"), [make_window(number) for number in range(20)])
    status = recorder.status()
    assert (status.pending_rows, status.dropped_requests, status.dropped_rows) == (
        10,
        {"queue_full": 2},
        {"queue_full": 22},
    )
    gate.opened.set()
    assert recorder.flush(LONG)
    assert recorder.record(make_request("room-again"), [])
    recorder.flush(LONG)
    requests, windows = stored(path)
    assert [row["request_id"] for row in requests] == ["in-hand", "fits", "room-again"]
    assert len(windows) == 8


def test_a_database_that_cannot_be_opened_degrades_and_recovers(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    gate = Gate(path)
    recorder = start(opener=gate.fail)
    recorder.record(make_request(), [make_window()])
    until(lambda: recorder.status().state == "degraded")
    assert not recorder.flush(0.0)
    status = recorder.status()
    assert (status.state, status.reason, status.degraded_since_ns) == ("degraded", "the disk is on fire", NOON)
    assert status.pending_rows == 2
    gate.opened.set()
    assert recorder.flush(LONG)
    assert gate.tries > 1
    assert (recorder.status().state, recorder.status().reason) == ("ok", None)
    assert count(path, "transitions") == 1


def test_an_unforeseen_fault_while_opening_does_not_end_the_thread(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    faults: list[Exception] = [RuntimeError("no such thing"), KeyError("x")]

    def opener() -> OpenLog:
        if faults:
            raise faults.pop()
        return open_log(path)

    recorder = start(opener=opener)
    recorder.record(make_request(), [])
    assert recorder.flush(LONG)
    assert count(path, "requests") == 1


class FailingInserts:
    """Makes the next inserts of transitions fail, as the driver would say it."""

    def __init__(self, engine: Engine, times: int) -> None:
        self.left = times
        event.listen(engine, "before_cursor_execute", self._before)

    def _before(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if self.left and statement.startswith("INSERT INTO transitions"):
            self.left -= 1
            raise OperationalError(statement, None, sqlite3.OperationalError("disk I/O error"))


def test_a_transaction_that_fails_half_way_leaves_no_half_request_and_is_tried_again(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    opened = open_log(path)
    faults = FailingInserts(opened.engine, times=3)
    recorder = start(opener=lambda: opened)
    recorder.record(make_request(), [make_window(0), make_window(1)])
    assert recorder.flush(LONG)
    assert faults.left == 0
    assert (count(path, "requests"), count(path, "transitions")) == (1, 2)
    status = recorder.status()
    assert (status.state, status.written_requests, status.dropped_requests) == ("ok", 1, {})


def test_a_full_disk_degrades_keeps_the_rows_and_recovers(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    opened = open_log(path)
    limits = [0]

    def set_limit(connection: sqlite3.Connection, *_: object) -> None:
        if limits[0]:
            connection.execute(f"PRAGMA max_page_count = {limits[0]}")

    event.listen(opened.engine, "checkout", set_limit)
    recorder = start(opener=lambda: opened)
    recorder.record(make_request("before"), [make_window()])
    assert recorder.flush(LONG)
    with opened.engine.begin() as connection:
        limits[0] = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    bulky = make_window(observation=b"\0" * 100_000)
    recorder.record(make_request("too-big"), [bulky])
    until(lambda: recorder.status().state == "degraded")
    status = recorder.status()
    assert (status.state, status.reason) == ("degraded", "database or disk is full")
    assert count(path, "requests") == 1  # reading goes on
    limits[0] = 1_000_000
    assert recorder.flush(LONG)
    assert recorder.status().state == "ok"
    assert [row["request_id"] for row in stored(path)[0]] == ["before", "too-big"]


def test_a_lock_held_by_another_program_is_waited_out(
    path: Path, start: Start, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(path).engine.dispose()
    monkeypatch.setattr("policy_store.sqlite.BUSY_TIMEOUT_SECONDS", 0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    recorder = start()
    recorder.record(make_request("opens"), [])
    recorder.flush(LONG)
    holder.execute("BEGIN IMMEDIATE")
    recorder.record(make_request("waits"), [])
    until(lambda: recorder.status().state == "degraded")
    assert "locked" in (recorder.status().reason or "")
    holder.execute("COMMIT")
    assert recorder.flush(LONG)
    holder.close()
    assert count(path, "requests") == 2


def test_a_log_that_is_damaged_at_start_is_reported_and_replaced(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rubbish" * 1000)
    recorder = start()
    recorder.record(make_request(), [])
    assert recorder.flush(LONG)
    status = recorder.status()
    assert status.state == "ok"
    assert status.moved_aside is not None
    assert status.moved_aside.read_bytes() == b"rubbish" * 1000
    assert count(path, "requests") == 1


def test_a_log_that_is_damaged_while_open_is_replaced_and_the_rows_kept(
    path: Path, start: Start, make_request: MakeRequest
) -> None:
    recorder = start()
    recorder.record(make_request("lost"), [])
    recorder.flush(LONG)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(b"\xff" * path.stat().st_size)
    recorder.record(make_request("kept"), [])
    assert recorder.flush(LONG)
    assert recorder.status().moved_aside is not None
    assert [row["request_id"] for row in stored(path)[0]] == ["kept"]


@pytest.mark.parametrize(
    "window",
    [
        {"decision": Decision(OFF, math.nan, "learner")},  # SQLite has no NaN: it would be NULL
        {"draft_ns": 2**63},  # more than a column holds
        {"decision": Decision(OFF, 0.0, None)},  # type: ignore[arg-type]
        {"observation": object()},
    ],
)
def test_a_row_that_can_never_be_written_is_dropped_without_its_neighbours(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow, window: dict[str, object]
) -> None:
    gate = Gate(path)
    recorder = start(opener=gate.hold)
    recorder.record(make_request("first"), [])
    gate.reached.wait(LONG)  # the others share a transaction
    recorder.record(make_request("before"), [make_window()])
    recorder.record(make_request("poison"), [make_window(0), make_window(1, **window)])
    recorder.record(make_request("after"), [make_window()])
    gate.opened.set()
    assert recorder.flush(LONG)
    assert [row["request_id"] for row in stored(path)[0]] == ["first", "before", "after"]
    status = recorder.status()
    assert (status.state, status.dropped_requests, status.dropped_rows) == ("ok", {"invalid": 1}, {"invalid": 3})
