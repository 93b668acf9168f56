"""What the status service answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """Whether a request would be taken now."""
    max_running: int = 0
    max_waiting: int = 0
    waiting_tokens: int = 0
    """Of the waiting requests' prompts and budgets."""
    max_waiting_tokens: int | None = None
    """None: no bound."""
    waiting_by_priority: Mapping[str, int] = field(default_factory=dict)
    """low, normal, high."""
    oldest_waiting_seconds: float = 0.0
    expected_wait_seconds: float | None = None
    """Of a request that comes now, by the rate at which requests start; None: not measured."""
    max_queue_seconds: float | None = None
    """None: a request may wait as long as it takes."""
    in_flight: int = 0
    """Generation calls that are being answered."""
    max_in_flight: int = 0
    max_client_requests: int | None = None
    """Of one caller at once; None: no bound."""


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
    action_switches: int = 0
    """Windows that went on under another action than the one before in their sequence."""


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
    notices: tuple[str, ...] = ()
    """What this run of the daemon found damaged and put right."""


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
        running=message.running,
        waiting=message.waiting,
        kv_tokens_reserved=message.kv_tokens_reserved,
        kv_tokens_total=message.kv_tokens_total,
        seconds_since_progress=message.seconds_since_progress,
        accepting=message.accepting,
        max_running=message.max_running,
        max_waiting=message.max_waiting,
        waiting_tokens=message.waiting_tokens,
        max_waiting_tokens=message.max_waiting_tokens if message.HasField("max_waiting_tokens") else None,
        waiting_by_priority=dict(message.waiting_by_priority),
        oldest_waiting_seconds=message.oldest_waiting_seconds,
        expected_wait_seconds=message.expected_wait_seconds if message.HasField("expected_wait_seconds") else None,
        max_queue_seconds=message.max_queue_seconds if message.HasField("max_queue_seconds") else None,
        in_flight=message.in_flight,
        max_in_flight=message.max_in_flight,
        max_client_requests=message.max_client_requests if message.HasField("max_client_requests") else None,
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
        notices=tuple(message.notices),
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
        action_switches=message.action_switches,
    )
