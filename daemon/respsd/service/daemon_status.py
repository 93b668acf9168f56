"""StatusService: how the daemon is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import respsd
from respsd.engine.api import Engine, EngineLoad
from respsd.engine.request import Priority
from respsd.errors import Overloaded
from respsd.service.calls import Call, Calls
from respsd.service.concurrency import Concurrency
from respsd.service.interceptor import Context
from respsd.service.limits import Limits
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
    notices: Callable[[], Sequence[str]] = tuple
    """What was found damaged and put right."""


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
        concurrency: Concurrency,
        limits: Callable[[], Limits],
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._lifecycle = lifecycle
        self._reports = reports
        self._addresses = addresses
        self._is_progressing = is_progressing
        self._concurrency = concurrency
        self._limits = limits

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
            notices=self._reports.notices(),
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
        queue, limits, in_flight = load.queue, self._limits(), self._concurrency.total
        return status_pb2.GetLoadResponse(
            running=load.running,
            waiting=load.waiting,
            kv_tokens_reserved=load.kv_tokens_reserved,
            kv_tokens_total=load.kv_tokens_total,
            seconds_since_progress=load.seconds_since_progress,
            accepting=self._lifecycle.phase is Phase.READY
            and self._is_progressing()
            and in_flight < limits.max_in_flight
            and self._queue_has_room(),
            max_running=load.max_running,
            max_waiting=queue.max_requests,
            waiting_tokens=queue.tokens,
            max_waiting_tokens=queue.max_tokens,
            waiting_by_priority={each.name.lower(): queue.by_priority.get(each, 0) for each in Priority},
            oldest_waiting_seconds=queue.oldest_seconds,
            expected_wait_seconds=queue.expected_seconds,
            max_queue_seconds=queue.max_seconds,
            in_flight=in_flight,
            max_in_flight=limits.max_in_flight,
            max_client_requests=limits.max_client_requests,
        )

    def _queue_has_room(self) -> bool:
        try:
            self._engine.check_room()
        except Overloaded:
            return False
        return True


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
        max_new_tokens=request.stopping.max_new_tokens * request.samples if request is not None else 0,
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
        action_switches=totals.action_switches,
    )
