from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from respsd.control.action import OFF
from respsd.control.controller import Decision
from respsd.errors import StorageError
from respsd.experience.database import open_log
from respsd.experience.queries import tokens_per_second_by_version
from respsd.experience.recorder import Recorder
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin

MakeRequest = Callable[..., RequestRecord]
MakeWindow = Callable[..., TransitionRecord]


@pytest.fixture
def log_of(path: Path, origin: Origin, make_request: MakeRequest) -> Callable[..., None]:
    def write(*windows: TransitionRecord) -> None:
        recorder = Recorder(lambda: open_log(path), origin)
        recorder.record(make_request(), windows)
        assert recorder.close(30.0)

    return write


def test_speed_is_all_committed_tokens_over_all_decode_time(
    path: Path, log_of: Callable[..., None], make_window: MakeWindow
) -> None:
    def window(number: int, version: int | None, committed: int, **ns: int) -> TransitionRecord:
        return make_window(number, decision=Decision(OFF, 0.0, "x", version), committed_tokens=committed, **ns)

    log_of(
        window(0, 1, 10, draft_ns=100_000_000, verify_ns=300_000_000, other_ns=100_000_000),  # 20 tokens/s
        window(1, 1, 50, draft_ns=200_000_000, verify_ns=700_000_000, other_ns=100_000_000),  # 50 tokens/s
        window(2, 2, 7, draft_ns=0, verify_ns=2_000_000_000, other_ns=0),
        window(3, None, 1000, draft_ns=1, verify_ns=1, other_ns=1),  # a request's own action
        window(4, 3, 0, draft_ns=0, verify_ns=0, other_ns=0),
    )
    assert tokens_per_second_by_version(path) == {1: pytest.approx(60 / 1.5), 2: pytest.approx(3.5)}


def test_the_sums_are_read_from_the_index_alone(path: Path) -> None:
    engine = open_log(path).engine
    with engine.begin() as connection:
        plan = connection.execute(
            text(
                "EXPLAIN QUERY PLAN SELECT policy_version, sum(committed_tokens), sum(draft_ns + verify_ns + other_ns) "
                "FROM transitions WHERE policy_version IS NOT NULL GROUP BY policy_version"
            )
        ).all()
    engine.dispose()
    assert "COVERING INDEX ix_transitions_throughput" in plan[0].detail


def test_a_log_without_rows_has_no_speeds(path: Path) -> None:
    open_log(path).engine.dispose()
    assert tokens_per_second_by_version(path) == {}


def test_a_missing_or_foreign_file_is_a_storage_error(path: Path) -> None:
    with pytest.raises(StorageError):
        tokens_per_second_by_version(path)
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(StorageError, match="no such table"):
        tokens_per_second_by_version(path)
