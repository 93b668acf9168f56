"""Spans of a request: their parent, their phases, their attributes; and no text in them."""

from __future__ import annotations

import asyncio
import sys

import grpc
import pytest

pytest.importorskip("opentelemetry.sdk", reason="respsd[otel] is not installed")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from respsd.engine.events import FinishReason, RequestFinished, Usage
from respsd.engine.request import GenerationRequest, StoppingParams
from respsd.errors import SettingsError
from respsd.service.calls import Call, TraceParent
from respsd.service.event_stream import EventStream
from respsd.telemetry.tracing import CallTracer

SECOND = 1_000_000_000
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def call(*, trace: str | None = None, method: str = "Generate", finished: bool = True) -> Call:
    """A call of 10 seconds: 1 in the queue, 2 of prefill, 6 of decoding."""
    made = Call(
        f"/respsd.v1.GenerationService/{method}",
        "id-1",
        trace=None if trace is None else TraceParent.parse(trace),
        started_ns=0,
        started_at_ns=1000 * SECOND,
        ended_ns=10 * SECOND,
    )
    if finished:
        made.request = GenerationRequest("id-1", (1, 2, 3), StoppingParams(max_new_tokens=7))
        made.events = EventStream(asyncio.new_event_loop(), lambda: None)
        made.events._take(
            made.events._samples[0],
            RequestFinished(
                FinishReason.LENGTH, Usage(3, 7), 0, 2, 6, 5, 4, 5,
                queue_seconds=1.0, prefill_seconds=2.0, decode_seconds=6.0,
            )
        )  # fmt: skip
    else:
        made.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return made


def traced(*calls: Call, sample_ratio: float = 1.0) -> list:
    exporter = InMemorySpanExporter()
    tracer = CallTracer(SimpleSpanProcessor(exporter), target="m", sample_ratio=sample_ratio)
    for each in calls:
        tracer.call_ended(each)
    tracer.close()
    return list(exporter.get_finished_spans())


def test_phases_are_children_that_lie_inside_the_request() -> None:
    *phases, request = traced(call())
    spans = {span.name: (span.start_time / SECOND, span.end_time / SECOND) for span in phases}
    assert (request.start_time, request.end_time) == (1000 * SECOND, 1010 * SECOND)
    assert spans == {"decode": (1004, 1010), "prefill": (1002, 1004), "queue": (1001, 1002)}
    assert {span.parent.span_id for span in phases} == {request.context.span_id}
    assert request.parent is None


def test_attributes_have_the_conventions_names() -> None:
    request = traced(call())[-1]
    assert request.name == "respsd.v1.GenerationService/Generate"
    assert dict(request.attributes) == {
        "rpc.system": "grpc",
        "rpc.service": "respsd.v1.GenerationService",
        "rpc.method": "Generate",
        "rpc.grpc.status_code": 0,
        "gen_ai.request.model": "m",
        "respsd.request_id": "id-1",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "respsd.steps": 2,
        "respsd.accepted_tokens": 5,
        "respsd.policy_version_first": 4,
        "respsd.policy_version_last": 5,
    }


def test_the_callers_span_is_the_parent() -> None:
    request = traced(call(trace=PARENT))[-1]
    assert f"{request.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"


def test_the_caller_decides_about_sampling_and_the_ratio_where_he_does_not() -> None:
    assert traced(call(trace=PARENT[:-2] + "00")) == []
    assert traced(call(), sample_ratio=0.0) == []
    assert traced(call(trace=PARENT), sample_ratio=0.0) != []


def test_a_refused_request_is_one_span_with_an_error() -> None:
    (request,) = traced(call(finished=False))
    assert request.status.description == "RESOURCE_EXHAUSTED"
    assert request.attributes["rpc.grpc.status_code"] == 8


def test_calls_that_do_not_generate_leave_no_span() -> None:
    assert traced(call(method="GetModelInfo")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0-0-01",
        PARENT.upper(),
        PARENT + "-x",
        PARENT.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{'1' * 16}-01",
    ],
)
def test_what_is_no_traceparent_is_ignored(text: str) -> None:
    assert TraceParent.parse(text) is None


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"respsd\[otel\]"):
        CallTracer.to_collector("127.0.0.1:4317", target="m", sample_ratio=1.0)
