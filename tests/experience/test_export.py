from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.recorders import LONG, NOON, MakeRequest, MakeWindow, Start

from respsd.control.action import OFF
from respsd.control.controller import Decision
from respsd.errors import DatabaseDamaged, StorageError
from respsd.experience import export
from respsd.experience.database import open_log
from respsd.experience.export import Selection, export_lines


@pytest.fixture
def written(path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow) -> Path:
    recorder = start()
    baseline = Decision(OFF, 0.0, "baseline", 1)
    recorder.record(make_request("a", finished_at_ns=NOON), [make_window(0), make_window(1, decision=baseline)])
    recorder.record(make_request("b", finished_at_ns=NOON + 9), [make_window(0)])
    recorder.record(make_request("without"), [])
    assert recorder.flush(LONG)
    return path


EVERYTHING = Selection()


def documents(path: Path, selection: Selection = EVERYTHING) -> list[dict[str, object]]:
    lines = list(export_lines(path, selection))
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    return [json.loads(line) for line in lines]


def test_a_line_is_a_window_with_its_requests_columns(written: Path) -> None:
    first, second, third = documents(written)
    assert [(row["request_id"], row["window"]) for row in (first, second, third)] == [("a", 0), ("a", 1), ("b", 0)]
    assert (first["arm"], first["policy_version"], first["log_prob"]) == ("learner", 2, -1.0986122886681098)
    assert (first["committed_tokens"], first["steps"], first["request_steps"]) == (31, 10, 21)
    assert (first["target"], first["device"], first["truncated"]) == ("target", "cpu", False)
    assert first["observation"] == [float(x) for x in np.linspace(-1, 1, 6, dtype="<f4")]
    assert first.keys() == third.keys()
    assert "id" not in first
    assert "window_key" not in first


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(arm="baseline"), [("a", 1)]),
        (Selection(policy_version=2), [("a", 0), ("b", 0)]),
        (Selection(finished_since_ns=NOON + 1), [("b", 0)]),
        (Selection(arm="baseline", policy_version=2), []),
    ],
)
def test_windows_can_be_selected(written: Path, selection: Selection, expected: list[tuple[str, int]]) -> None:
    assert [(row["request_id"], row["window"]) for row in documents(written, selection)] == expected


def test_chunks_lose_and_repeat_nothing(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_CHUNK_ROWS", 3)
    recorder = start()
    for number in range(5):
        recorder.record(make_request(str(number)), [make_window(0), make_window(1)])
    assert recorder.flush(LONG)
    found = [(row["request_id"], row["window"]) for row in documents(path)]
    assert found == [(str(number), window) for number in range(5) for window in range(2)]


def test_what_is_not_finite_is_null(
    path: Path, start: Start, make_request: MakeRequest, make_window: MakeWindow
) -> None:
    recorder = start()
    blob = np.array([1.0, np.nan, np.inf], "<f4").tobytes()
    recorder.record(make_request(), [make_window(observation=blob)])
    assert recorder.flush(LONG)
    assert documents(path)[0]["observation"] == [1.0, None, None]


def test_a_log_without_rows_has_no_lines(path: Path) -> None:
    open_log(path).engine.dispose()
    assert documents(path) == []


def test_a_missing_or_damaged_log_is_named(path: Path) -> None:
    with pytest.raises(StorageError, match="no experience log"):
        documents(path)
    path.parent.mkdir()
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(DatabaseDamaged):
        documents(path)
