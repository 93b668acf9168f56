from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tuning.conftest import ORIGIN, SCHEMA, TABLE, Workshop

from respsd.control.controller import Decision
from respsd.errors import StorageError
from respsd.tuning import experience
from respsd.tuning.experience import LoggedExperience, Wanted, Watermark, count_new_windows

Filled = Callable[..., Workshop]


def wanted(**changes: object) -> Wanted:
    values: dict[str, object] = {
        "schema_fingerprint": SCHEMA.fingerprint,
        "width": SCHEMA.width,
        "table_fingerprint": TABLE.fingerprint,
        "actions": len(TABLE),
        "versions": (2,),
        "held_out": False,
        "held_out_every": 5,
    }
    return Wanted(**(values | changes))  # type: ignore[arg-type]


def read(workshop: Workshop, **changes: object) -> experience.Reading:
    return LoggedExperience(workshop.log).read(wanted(**changes))


def test_lanes_come_whole_and_in_order(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience, "_CHUNK_ROWS", 7)  # chunks that cut lanes in two
    windows = read(filled(11, windows=4)).windows
    assert windows.lane.tolist() == np.repeat([1, 2, 3, 4, 6, 7, 8, 9, 11], 4).tolist()
    assert windows.number.tolist() == [0, 1, 2, 3] * 9
    assert windows.starts.tolist() == [True, False, False, False] * 9
    assert windows.observation.shape == (36, SCHEMA.width)
    assert windows.seconds == pytest.approx(np.where(windows.action == 2, 0.5, 1.0), rel=0.3)


def test_training_and_held_out_requests_are_disjoint_and_complete(filled: Filled) -> None:
    workshop = filled(20)
    trained, held_out = read(workshop).windows.lane, read(workshop, held_out=True).windows.lane
    assert set(held_out) == {5, 10, 15, 20}
    assert set(trained) | set(held_out) == set(range(1, 21))
    assert not set(trained) & set(held_out)


def test_only_what_is_behind_the_watermark_is_read(filled: Filled) -> None:
    workshop = filled(8)
    mark = LoggedExperience(workshop.log).newest()
    assert mark.request_row == 8
    workshop.record()
    assert set(read(workshop, after=mark).windows.lane) == {9}
    assert count_new_windows(workshop.log, mark) == 5
    assert count_new_windows(workshop.log, Watermark()) == 45


def test_a_log_that_was_begun_anew_is_read_from_its_start(filled: Filled) -> None:
    workshop = filled(8)
    assert count_new_windows(workshop.log, Watermark(request_row=100, finished_at_ns=1)) == 40  # longer than this log
    assert count_new_windows(workshop.log, Watermark(request_row=8, finished_at_ns=1)) == 40  # another eighth request


def test_a_watermark_whose_request_was_deleted_still_counts(filled: Filled) -> None:
    workshop = filled(8)
    source = LoggedExperience(workshop.log)
    engine = workshop.writer._opened().engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM transitions WHERE request_row <= 4")
        connection.exec_driver_sql("DELETE FROM requests WHERE id <= 4")
    assert count_new_windows(workshop.log, Watermark(4, 123)) == 20
    assert source.newest().request_row == 8


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("other_observation_schema", {"observation_schema": "other"}),
        ("degraded", {"degraded_steps": 6}),
        ("no_time_measured", {"draft_ns": 0, "verify_ns": 0, "other_ns": 0}),
        ("no_token_committed", {"committed_tokens": 0}),
        ("malformed", {"observation": b"\0" * 7}),
        ("malformed", {"observation": np.full(SCHEMA.width, np.nan, "<f4").tobytes()}),
        ("other_action_table", {"decision": Decision(TABLE[0], -1.0, "learner", 2, 0, "other")}),
        ("no_action_index", {"decision": Decision(TABLE[0], -1.0, "learner", 2, None, TABLE.fingerprint)}),
        ("malformed", {"decision": Decision(TABLE[0], -1.0, "learner", 2, 99, TABLE.fingerprint)}),
        ("malformed", {"decision": Decision(TABLE[0], 0.5, "learner", 2, 0, TABLE.fingerprint)}),
        ("too_old", {"decision": Decision(TABLE[0], -1.0, "learner", 1, 0, TABLE.fingerprint)}),
        ("too_old", {"decision": Decision(TABLE[0], -1.0, "learner", None, 0, TABLE.fingerprint)}),
    ],
)
def test_what_may_not_be_learnt_from_is_left_out_and_counted(
    workshop: Workshop, reason: str, changes: dict[str, object]
) -> None:
    workshop.record(3, **changes)
    workshop.record(2)
    reading = read(workshop)
    assert reading.left_out == {reason: 3}
    assert set(reading.windows.lane) == {2}


def test_windows_of_another_engine_are_left_out(workshop: Workshop) -> None:
    workshop.record(3, origin=replace(ORIGIN, dtype="bfloat16"))
    workshop.record(2, origin=replace(ORIGIN, drafter=None))
    workshop.record(2)
    assert read(workshop).left_out == {"other_engine": 5}


def test_an_engine_without_a_drafter_is_the_same_as_itself(workshop: Workshop) -> None:
    workshop.record(3, origin=replace(ORIGIN, drafter=None))
    assert len(read(workshop).windows) == 3


def test_other_arms_are_not_read(workshop: Workshop) -> None:
    workshop.record(3, arm="champion")
    workshop.record(2)
    reading = read(workshop)
    assert (len(reading.windows), reading.left_out) == (2, {})


def test_of_too_many_the_newest_are_read(filled: Filled) -> None:
    reading = read(filled(9, windows=4), limit=10)
    assert reading.windows.lane.tolist() == [7, 7, 8, 8, 8, 8, 9, 9, 9, 9]
    assert reading.left_out == {"over_limit": 22}


def test_speeds_of_a_version_and_of_all(filled: Filled) -> None:
    workshop = filled(2)
    workshop.record(3, arm="baseline")
    source = LoggedExperience(workshop.log)
    assert set(source.speeds(1, 100).lane) == {3}
    assert len(source.speeds(None, 100)) == 13
    assert len(source.speeds(None, 4)) == 4
    assert len(source.speeds(77, 4)) == 0


def test_no_log_is_a_named_failure_and_nothing_to_learn(workshop: Workshop) -> None:
    with pytest.raises(StorageError, match="no experience log"):
        LoggedExperience(workshop.log).newest()
    assert count_new_windows(workshop.log, Watermark()) == 0
