"""Feeds the metrics with how requests end."""

from __future__ import annotations

import grpc

from respsd.engine.events import FinishReason
from respsd.service.calls import Call
from respsd.telemetry.metrics import NO_REASON, Metrics


class CallMetrics:
    """Counts generation requests by code and reason, refused ones included (see `service.calls.CallObserver`)."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def call_ended(self, call: Call) -> None:
        """Count it."""
        if call.is_generation:
            self._metrics.request_ended(call.code.name, _reason(call), call.seconds)
            if call.refusal is not None:
                self._metrics.request_refused(call.refusal)


def _reason(call: Call) -> str:
    if call.finished is not None:
        return call.finished.reason.value
    abandoned = call.code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
    return FinishReason.CANCELLED.value if abandoned else NO_REASON
