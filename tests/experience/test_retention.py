from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.recorders import LONG, NOON, MakeRequest, MakeWindow, Start, count

from respsd.control.action import OFF
from respsd.control.controller import Decision
from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience import retention
from respsd.experience.database import open_log
from respsd.experience.recorder import Recorder
from respsd.experience.retention import Limits, prune

Fill = Callable[..., Recorder]
LEARNER = Decision(OFF, -1.0, "learner", 2, 0, "table")
CHAMPION = Decision(OFF, 0.0, "champion", 1, 0, "table")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
def fill(start: Start, make_request: MakeRequest, make_window: MakeWindow) -> Fill:
    """Logs requests 1, 2, ...: each argument is a request's number of windows, negative for an explorer."""

    def write(*windows: int, **changes: object) -> Recorder:
        recorder = start()
        for number, wanted in enumerate(windows, start=1):
            decision = LEARNER if wanted < 0 else CHAMPION
            rows = [make_window(each, decision=decision, **changes) for each in range(abs(wanted))]
            assert recorder.record(make_request(f"r-{number}", finished_at_ns=NOON + number), rows)
        assert recorder.flush(LONG)
        return recorder

    return write


def left(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [key for (key,) in connection.execute("SELECT id FROM requests ORDER BY id")]


def test_the_oldest_requests_go_whole(path: Path, fill: Fill) -> None:
    fill(3, 2, 4, 1)
    pruned = prune(path, Limits(windows=6), chunk_rows=100)
    assert left(path) == [3, 4]  # 10 - 3 - 2 = 5; one request more than the limit asks for goes nowhere
    assert (pruned.requests, pruned.windows) == (2, {"rows": 5})
    assert count(path, "transitions") == 5


def test_what_is_within_the_limits_stays(path: Path, fill: Fill) -> None:
    fill(3, 2, 4)
    limits = Limits(finished_before_ns=NOON, windows=9, size_bytes=1 << 30)
    assert prune(path, limits, chunk_rows=100).requests == 0
    assert left(path) == [1, 2, 3]
    assert prune(path, Limits(), chunk_rows=100).requests == 0


def test_old_requests_go_by_age(path: Path, fill: Fill) -> None:
    fill(1, 2, 1, 1)
    pruned = prune(path, Limits(finished_before_ns=NOON + 3), chunk_rows=1)
    assert left(path) == [3, 4]
    assert pruned.windows == {"age": 3}


def test_the_newest_request_stays_so_that_keys_never_go_back(
    path: Path, fill: Fill, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    recorder = fill(1, 1, 2, 0)
    prune(path, Limits(finished_before_ns=NOON * 2, windows=1, size_bytes=1), chunk_rows=100)
    assert left(path) == [3, 4]  # the newest window's and the newest
    assert recorder.record(make_request("next"), [make_window()])
    assert recorder.flush(LONG)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT max(id) FROM requests").fetchone() == (5,)
        assert connection.execute("SELECT max(id) FROM transitions").fetchone() == (5,)


def test_what_the_next_update_has_yet_to_read_is_spared(path: Path, fill: Fill) -> None:
    fill(-2, 2, -2, 2, -2, 1)
    limits = Limits(finished_before_ns=NOON * 2, windows=1, unread_after=2)
    pruned = prune(path, limits, chunk_rows=3)
    assert left(path) == [3, 5, 6]  # explorers after request 2, and the newest
    assert pruned.windows == {"age": 6}


def test_only_the_size_makes_unread_rows_go_and_they_are_counted(path: Path, fill: Fill) -> None:
    fill(-2, 2, -2, 2, -2, 1, observation=bytes(20_000))
    limits = Limits(size_bytes=145_000, unread_after=0)
    pruned = prune(path, limits, chunk_rows=1)
    assert pruned.windows == {"bytes": 4, "bytes_unread": 4}
    assert left(path) == [5, 6]
    assert pruned.size_bytes <= 145_000


def test_the_file_shrinks(path: Path, fill: Fill) -> None:
    recorder = fill(*[1] * 60, observation=bytes(40_000))
    pruned = prune(path, Limits(size_bytes=400_000), chunk_rows=10)
    assert pruned.unreturned_bytes == 0
    assert pruned.freed_bytes > 1_500_000
    assert recorder.close(LONG)  # folds the write-ahead log in
    assert path.stat().st_size == pruned.size_bytes <= 400_000


def test_a_file_without_incremental_vacuum_keeps_its_free_pages_and_says_so(path: Path, fill: Fill) -> None:
    recorder = fill(*[1] * 20, observation=bytes(40_000))
    assert recorder.close(LONG)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    size = path.stat().st_size
    pruned = prune(path, Limits(size_bytes=400_000), chunk_rows=10)
    assert (pruned.freed_bytes, pruned.unreturned_bytes > 300_000) == (0, True)
    assert pruned.size_bytes <= 400_000
    assert path.stat().st_size == size


def test_a_transaction_has_few_rows(path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[int] = []
    delete = retention._Pass._delete_chunk

    def watch(self: retention._Pass, reason: retention.Reason, victims: list[retention._Victim]) -> None:
        chunks.append(len(victims))
        delete(self, reason, victims)

    monkeypatch.setattr(retention._Pass, "_delete_chunk", watch)
    fill(3, 3, 3, 3, 20, 1, 1)
    prune(path, Limits(finished_before_ns=NOON * 2), chunk_rows=8)
    assert chunks == [2, 2, 1, 1]  # two of four rows each, the large one alone, one with the newest behind it


def test_it_stops_between_two_transactions(path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    delete = retention._Pass._delete_chunk

    def stop_after(self: retention._Pass, reason: retention.Reason, victims: list[retention._Victim]) -> None:
        delete(self, reason, victims)
        stop.set()

    monkeypatch.setattr(retention._Pass, "_delete_chunk", stop_after)
    fill(1, 1, 1, 1)
    assert prune(path, Limits(finished_before_ns=NOON * 2, size_bytes=1), chunk_rows=2, stop=stop).requests == 1
    assert left(path) == [2, 3, 4]


def test_a_dry_run_deletes_nothing_and_says_what_would_go(path: Path, fill: Fill) -> None:
    fill(2, -1, 2, 2, 3, 1)
    limits = Limits(finished_before_ns=NOON + 4, windows=5, unread_after=0)
    planned = prune(path, limits, chunk_rows=3, dry_run=True)
    assert left(path) == [1, 2, 3, 4, 5, 6]
    done = prune(path, limits, chunk_rows=3)
    assert (planned.requests, planned.windows) == (done.requests, done.windows) == (3, {"age": 4, "rows": 2})


def test_a_dry_run_estimates_by_size(path: Path, fill: Fill) -> None:
    fill(*[1] * 40, observation=bytes(40_000))
    planned = prune(path, Limits(size_bytes=850_000), chunk_rows=2, dry_run=True)
    assert len(left(path)) == 40
    done = prune(path, Limits(size_bytes=850_000), chunk_rows=2)
    assert planned.requests == pytest.approx(done.requests, abs=2)
    assert planned.freed_bytes == 0


def test_recording_goes_on_meanwhile(
    path: Path, fill: Fill, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    recorder = fill(*[2] * 200)
    done = threading.Event()

    def record() -> None:
        number = 0
        while not done.is_set():
            recorder.record(make_request(f"new-{number}"), [make_window()])
            recorder.flush(LONG)
            number += 1

    writer = threading.Thread(target=record)
    writer.start()
    pruned = prune(path, Limits(finished_before_ns=NOON + 1000), chunk_rows=10)
    done.set()
    writer.join()
    status = recorder.status()
    assert (status.state, status.dropped_requests) == ("ok", {})
    assert status.written_requests == count(path, "requests") + pruned.requests


def test_two_that_delete_at_once_do_not_go_below_the_limit_together(
    path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon's retention and the command line's."""
    fill(*[1] * 40)
    limits = Limits(windows=20)
    delete, others = retention._Pass._delete_chunk, [True]

    def delete_after_another(self: retention._Pass, reason: retention.Reason, victims: list[retention._Victim]) -> None:
        if others.pop() if others else False:
            prune(path, limits, chunk_rows=100)
        delete(self, reason, victims)

    monkeypatch.setattr(retention._Pass, "_delete_chunk", delete_after_another)
    prune(path, limits, chunk_rows=8)
    assert len(left(path)) == 20


def test_a_log_that_is_missing_or_damaged_is_named(path: Path) -> None:
    with pytest.raises(StorageError, match="no experience log"):
        prune(path, Limits(), chunk_rows=1)
    assert not path.exists()
    path.parent.mkdir()
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(DatabaseDamaged, match="not a database"):
        prune(path, Limits(windows=1), chunk_rows=1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    windows=st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    limit=st.integers(1, 20),
    unread_after=st.none() | st.integers(0, 12),
    chunk_rows=st.integers(1, 9),
)
def test_the_oldest_that_may_go_are_what_goes(
    tmp_path_factory: pytest.TempPathFactory,
    make_request: MakeRequest,
    make_window: MakeWindow,
    origin: object,
    windows: list[int],
    limit: int,
    unread_after: int | None,
    chunk_rows: int,
) -> None:
    path = tmp_path_factory.mktemp("log") / "transitions.db"
    recorder = Recorder(lambda: open_log(path), origin)  # type: ignore[arg-type]
    for number, wanted in enumerate(windows, start=1):
        decision = LEARNER if wanted < 0 else CHAMPION
        recorder.record(make_request(f"r-{number}"), [make_window(w, decision=decision) for w in range(abs(wanted))])
    assert recorder.close(LONG)
    sizes = {number: abs(wanted) for number, wanted in enumerate(windows, start=1)}
    keep_from = min(len(windows), max((n for n, size in sizes.items() if size), default=len(windows)))
    excess = sum(sizes.values()) - limit
    expected = Counter(dict.fromkeys(sizes, 1))
    for key, size in sizes.items():
        is_unread = unread_after is not None and key > unread_after and windows[key - 1] < 0
        if excess > 0 and key < keep_from and not is_unread:
            del expected[key]
            excess -= size
    prune(path, Limits(windows=limit, unread_after=unread_after), chunk_rows=chunk_rows)
    assert left(path) == sorted(expected)
