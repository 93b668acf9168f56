"""Finished requests with their windows, and a log to write them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.recorders import LONG, NOON, QUICK, Start

from respsd.control.action import Action
from respsd.control.controller import Decision
from respsd.experience.database import OpenLog, open_log
from respsd.experience.recorder import Recorder, RecorderSettings
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin


@pytest.fixture
def origin() -> Origin:
    return Origin(
        host="box",
        instance_id="run-1",
        target="target",
        drafter=None,
        dtype="float32",
        device="cpu",
        engine_config_hash="c0ffee",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "transitions.db"


@pytest.fixture
def make_request() -> Callable[..., RequestRecord]:
    def make(request_id: str = "r-1", **changes: object) -> RequestRecord:
        values: dict[str, object] = {
            "request_id": request_id,
            "created_at_ns": NOON,
            "finished_at_ns": NOON + 5_000_000_123,
            "prompt_tokens": 11,
            "completion_tokens": 64,
            "finish_reason": "length",
            "temperature": 0.1 + 0.2,  # a double that is not 0.3
            "top_p": 0.9,
            "top_k": 40,
            "seed": 2**63 - 1,
            "steps": 21,
            "drafted_tokens": 315,
            "accepted_tokens": 43,
            "queue_ns": 7,
            "prefill_ns": 90_000_001,
            "decode_ns": 4_900_000_003,
            "policy_version_first": 1,
            "policy_version_last": 2,
        }
        return RequestRecord(**(values | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_window() -> Callable[..., TransitionRecord]:
    def make(window: int = 0, **changes: object) -> TransitionRecord:
        values: dict[str, object] = {
            "window": window,
            "opened_at_ns": NOON + window,
            "observation": np.linspace(-1, 1, 6, dtype="<f4").tobytes(),
            "observation_schema": "5c8e0a",
            "decision": Decision(Action(32, 5, 8), -1.0986122886681098, "learner", 2, 17, "7ab1e0"),
            "applied": Action(16, 4, 4),
            "degraded_steps": 1,
            "steps": 10,
            "drafted_tokens": 150,
            "accepted_tokens": 21,
            "committed_tokens": 31,
            "draft_ns": 130_000_001,
            "verify_ns": 570_000_002,
            "other_ns": 30_000_003,
            "context_length": 128,
            "batch_size": 1.5,
            "truncated": False,
        }
        return TransitionRecord(**(values | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def start(path: Path, origin: Origin) -> Iterator[Start]:
    """Starts recorders, which are closed after the test."""
    started: list[Recorder] = []

    def make(settings: RecorderSettings = QUICK, opener: Callable[[], OpenLog] | None = None) -> Recorder:
        recorder = Recorder(opener or (lambda: open_log(path, lambda: NOON)), origin, lambda: NOON, settings)
        started.append(recorder)
        return recorder

    yield make
    for recorder in started:
        recorder.close(LONG)
