"""StatusService: how the daemon is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import respsd
from respsd.engine.api import Engine, EngineLoad
from respsd.service.calls import Call, Calls
from respsd.service.interceptor import Context
from respsd.service.phase import Lifecycle, Phase
from respsd.telemetry.totals import Totals
from respsd_client.v1 import status_pb2, status_pb2_grpc

_STARTED_NS = time.time_ns()


@dataclass(frozen=True, slots=True)
class Reports:
    """What parts beside the engine can tell."""

    serving: Callable[[], Mapping[str, int | None]] = dict
    """The version that each alias serves; None for a built-in policy."""
    totals: Callable[[], Totals] = Totals
    learning_paused: Callable[[], str | None] = lambda: None
    """Why no policy is trained now."""
    rollout: Callable[[], Sequence[str]] = tuple
    """The comparisons of policies that are under way, in words."""


class StatusServicer(status_pb2_grpc.StatusServiceServicer):
    """Answers from the engine, the calls in flight and the reports; none of it takes long."""

    def __init__(
        self,
        engine: Engine,
        calls: Calls,
        lifecycle: Lifecycle,
        reports: Reports,
        *,
        addresses: Callable[[], Sequence[str]],
        is_progressing: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._lifecycle = lifecycle
        self._reports = reports
        self._addresses = addresses
        self._is_progressing = is_progressing

    async def GetLoad(  # noqa: N802  the wire's name
        self, _request: status_pb2.GetLoadRequest, _context: Context
    ) -> status_pb2.GetLoadResponse:
        """The work now."""
        return self._load_message(self._engine.load())

    async def GetStatus(  # noqa: N802
        self, _request: status_pb2.GetStatusRequest, _context: Context
    ) -> status_pb2.GetStatusResponse:
        """What is served and what was counted."""
        model = self._engine.model
        answer = status_pb2.GetStatusResponse(
            phase=status_pb2.Phase.Value(f"PHASE_{self._lifecycle.phase.name}"),
            healthy=self._is_progressing(),
            daemon_version=respsd.__version__,
            pid=os.getpid(),
            addresses=self._addresses(),
            target=model.target,
            drafter=model.drafter,
            dtype=model.dtype,
            device=model.device,
            load=self._load_message(self._engine.load()),
            policies=[
                status_pb2.ServingPolicy(alias=alias, version=version)
                for alias, version in self._reports.serving().items()
            ],
            totals=_totals_message(self._reports.totals()),
            learning_paused=self._reports.learning_paused(),
            rollout=self._reports.rollout(),
        )
        answer.started.FromNanoseconds(_STARTED_NS)
        return answer

    async def ListRequests(  # noqa: N802
        self, _request: status_pb2.ListRequestsRequest, _context: Context
    ) -> status_pb2.ListRequestsResponse:
        """Requests in flight, the oldest first."""
        running = [call for call in self._calls.active if call.is_generation]
        return status_pb2.ListRequestsResponse(requests=[_request_message(call) for call in running])

    def _load_message(self, load: EngineLoad) -> status_pb2.GetLoadResponse:
        return status_pb2.GetLoadResponse(
            running=load.running,
            waiting=load.waiting,
            kv_tokens_reserved=load.kv_tokens_reserved,
            kv_tokens_total=load.kv_tokens_total,
            seconds_since_progress=load.seconds_since_progress,
            accepting=self._lifecycle.phase is Phase.READY and self._is_progressing(),
        )


def _request_message(call: Call) -> status_pb2.RunningRequest:
    generated = call.events.committed_tokens if call.events is not None else 0
    request = call.request
    return status_pb2.RunningRequest(
        request_id=call.request_id,
        caller=call.caller,
        state=status_pb2.REQUEST_STATE_GENERATING if generated else status_pb2.REQUEST_STATE_WAITING,
        age_seconds=call.seconds,
        prompt_tokens=len(request.prompt_ids) if request is not None else 0,
        generated_tokens=generated,
        max_new_tokens=request.stopping.max_new_tokens if request is not None else 0,
    )


def _totals_message(totals: Totals) -> status_pb2.Totals:
    return status_pb2.Totals(
        arms=[
            status_pb2.ArmTotals(arm=arm, tokens=each.tokens, decode_seconds=each.decode_seconds)
            for arm, each in totals.arms.items()
        ],
        drafted_tokens=totals.drafted_tokens,
        accepted_tokens=totals.accepted_tokens,
        actions=[status_pb2.ActionTotals(action=action, steps=steps) for action, steps in totals.actions.items()],
        requests=totals.requests,
    )
