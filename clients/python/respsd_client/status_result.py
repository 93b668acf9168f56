"""What the status service answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from respsd_client.v1 import status_pb2


@dataclass(frozen=True, slots=True)
class Load:
    """The daemon's work at one moment."""

    running: int
    waiting: int
    kv_tokens_reserved: int
    kv_tokens_total: int
    seconds_since_progress: float
    """0 when idle, infinite once the engine died."""
    accepting: bool


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """What one arm generated since the start."""

    tokens: int
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Counted since the start."""

    arms: Mapping[str, ArmTotals]
    drafted_tokens: int
    accepted_tokens: int
    actions: Mapping[str, int]
    """Steps, by action."""
    requests: Mapping[str, int]
    """Requests that ended, by status code's name."""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """What the daemon serves and how it does."""

    phase: str
    """starting, ready, draining or stopping."""
    healthy: bool
    daemon_version: str
    pid: int
    started: datetime
    addresses: tuple[str, ...]
    target: str
    drafter: str | None
    dtype: str
    device: str
    load: Load
    policies: Mapping[str, int | None]
    """The version that each alias serves; None for a built-in policy."""
    totals: Totals
    learning_paused: str | None = None
    """Why no policy is trained now; None where the daemon learns."""
    rollout: tuple[str, ...] = ()
    """The comparisons of policies that are under way, in words."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """One request in flight."""

    request_id: str
    caller: str
    state: str
    """waiting (queued, or its prompt is being read) or generating."""
    age_seconds: float
    prompt_tokens: int
    generated_tokens: int
    max_new_tokens: int


def read_load(message: status_pb2.GetLoadResponse) -> Load:
    """The load of an answer."""
    return Load(
        message.running,
        message.waiting,
        message.kv_tokens_reserved,
        message.kv_tokens_total,
        message.seconds_since_progress,
        message.accepting,
    )


def read_status(message: status_pb2.GetStatusResponse) -> DaemonStatus:
    """The status of an answer."""
    return DaemonStatus(
        phase=status_pb2.Phase.Name(message.phase).removeprefix("PHASE_").lower(),
        healthy=message.healthy,
        daemon_version=message.daemon_version,
        pid=message.pid,
        started=message.started.ToDatetime(UTC),
        addresses=tuple(message.addresses),
        target=message.target,
        drafter=message.drafter if message.HasField("drafter") else None,
        dtype=message.dtype,
        device=message.device,
        load=read_load(message.load),
        policies={each.alias: each.version if each.HasField("version") else None for each in message.policies},
        totals=_read_totals(message.totals),
        learning_paused=message.learning_paused if message.HasField("learning_paused") else None,
        rollout=tuple(message.rollout),
    )


def read_requests(message: status_pb2.ListRequestsResponse) -> list[RunningRequest]:
    """The requests of an answer."""
    return [
        RunningRequest(
            request_id=each.request_id,
            caller=each.caller,
            state=status_pb2.RequestState.Name(each.state).removeprefix("REQUEST_STATE_").lower(),
            age_seconds=each.age_seconds,
            prompt_tokens=each.prompt_tokens,
            generated_tokens=each.generated_tokens,
            max_new_tokens=each.max_new_tokens,
        )
        for each in message.requests
    ]


def _read_totals(message: status_pb2.Totals) -> Totals:
    return Totals(
        arms={each.arm: ArmTotals(each.tokens, each.decode_seconds) for each in message.arms},
        drafted_tokens=message.drafted_tokens,
        accepted_tokens=message.accepted_tokens,
        actions={each.action: each.steps for each in message.actions},
        requests=dict(message.requests),
    )
