"""OpenTelemetry spans of generation requests; the packages come with `respsd[otel]` and load only where this is used.

A request is one server span, the child of the caller's span where `traceparent` names one, with a span each for queue,
prefill and decode. They are made when the request has ended, out of times that the engine measured, so tracing costs
the engine nothing. Attributes follow the GenAI conventions where those have a name; text is never among them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from respsd.errors import SettingsError
from respsd.service.calls import Call, TraceParent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span

_PACKAGES = ("opentelemetry.sdk.trace.export", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
_MISSING = "tracing.endpoint: tracing needs more packages; install respsd[otel]"


def check_packages() -> None:
    """Load what traces are made and sent with; raises SettingsError where it is not installed."""
    try:
        for name in _PACKAGES:
            import_module(name)
    except ImportError as error:
        raise SettingsError(_MISSING) from error


class CallTracer:
    """Makes the spans (see `service.calls.CallObserver`)."""

    def __init__(self, processor: SpanProcessor, *, target: str, sample_ratio: float = 1.0) -> None:
        """:param sample_ratio: of requests whose caller does not say whether to trace them."""
        self._provider = _provider(processor, sample_ratio)
        self._tracer = self._provider.get_tracer("respsd")
        self._target = target

    @classmethod
    def to_collector(cls, endpoint: str, *, target: str, sample_ratio: float) -> CallTracer:
        """Send spans to an OTLP/gRPC collector at HOST:PORT; raises SettingsError where packages are missing."""
        check_packages()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
        return cls(BatchSpanProcessor(exporter), target=target, sample_ratio=sample_ratio)

    def call_ended(self, call: Call) -> None:
        """Make the spans of a generation request."""
        if not call.is_generation:
            return
        from opentelemetry import trace

        span = self._tracer.start_span(
            call.method.removeprefix("/"),
            context=_parent(call.trace),
            kind=trace.SpanKind.SERVER,
            start_time=call.started_at_ns,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": call.method[1:].rpartition("/")[0],
                "rpc.method": call.method.rpartition("/")[2],
                "rpc.grpc.status_code": int(call.code.value[0]),
                "gen_ai.request.model": self._target,
                "respsd.request_id": call.request_id,
            },
        )
        if call.code.name != "OK":
            span.set_status(trace.StatusCode.ERROR, call.code.name)
        self._describe(span, call)
        self._phases(span, call)
        span.end(call.started_at_ns + round(call.seconds * 1e9))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _describe(self, span: Span, call: Call) -> None:
        if call.request is not None:
            span.set_attribute("gen_ai.request.max_tokens", call.request.stopping.max_new_tokens)
            span.set_attribute("gen_ai.request.temperature", call.request.sampling.temperature)
        finished = call.finished
        if finished is None:
            return
        span.set_attribute("gen_ai.response.finish_reasons", (finished.reason.value,))
        span.set_attribute("gen_ai.usage.input_tokens", finished.usage.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", finished.usage.completion_tokens)
        span.set_attribute("respsd.steps", finished.steps)
        span.set_attribute("respsd.accepted_tokens", finished.accepted_tokens)
        for name, version in (("first", finished.policy_version_first), ("last", finished.policy_version_last)):
            if version is not None:
                span.set_attribute(f"respsd.policy_version_{name}", version)

    def _phases(self, span: Span, call: Call) -> None:
        """A child for each phase, ending with the call; decode ends it, prefill comes before, the queue before that."""
        finished = call.finished
        if finished is None:
            return
        from opentelemetry import trace

        inside = trace.set_span_in_context(span)
        end = call.started_at_ns + round(call.seconds * 1e9)
        for name, seconds in (
            ("decode", finished.decode_seconds),
            ("prefill", finished.prefill_seconds),
            ("queue", finished.queue_seconds),
        ):
            start = max(call.started_at_ns, end - round(seconds * 1e9))
            self._tracer.start_span(name, context=inside, start_time=start).end(end)
            end = start


def _provider(processor: SpanProcessor, sample_ratio: float) -> TracerProvider:
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise SettingsError(_MISSING) from error
    from respsd import __version__

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource.create({"service.name": "respsd", "service.version": __version__}),
    )
    provider.add_span_processor(processor)
    return provider


def _parent(trace_parent: TraceParent | None) -> Context:
    """The context of the caller's span; an empty one, never the current one, where there is none."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if trace_parent is None:
        return Context()
    parent = trace.SpanContext(
        trace_id=int(trace_parent.trace_id, 16),
        span_id=int(trace_parent.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED if trace_parent.sampled else 0),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())
