"""The calls that are being handled, for whoever lists, counts or traces them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from respsd.engine.events import RequestFinished
from respsd.engine.request import GenerationRequest
from respsd.service.event_stream import EventStream

log = structlog.get_logger(__name__)

TRACE_KEY = "traceparent"
_TRACE_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_GENERATING = ("Generate", "GenerateStream", "ModelInfer", "ModelStreamInfer")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The caller's span (W3C Trace Context, version 00)."""

    trace_id: str
    span_id: str
    sampled: bool

    @classmethod
    def parse(cls, text: str) -> TraceParent | None:
        """Read `00-TRACE-SPAN-FLAGS`; None for anything else, which the standard has ignored."""
        match = _TRACE_PARENT.fullmatch(text)
        return cls(match[1], match[2], bool(int(match[3], 16) & 1)) if match else None


@dataclass(slots=True, eq=False)
class Call:
    """One call and what is known of it so far."""

    method: str
    """`/package.Service/Method`."""
    request_id: str
    caller: str = "anyone"
    trace: TraceParent | None = None
    started_ns: int = field(default_factory=time.perf_counter_ns)
    started_at_ns: int = field(default_factory=time.time_ns)
    """UTC; `started_ns` is monotonic."""
    ended_ns: int = 0
    request: GenerationRequest | None = None
    """Once it is accepted."""
    events: EventStream | None = None
    """Once the engine has it."""
    code: grpc.StatusCode = grpc.StatusCode.OK
    """How it ended."""
    refusal: str | None = None
    """Which limit of the daemon's capacity refused or ended it (`errors.RespsdError.reason`)."""
    is_logged: bool = False
    """Whether the interceptor has written its line."""

    @property
    def is_generation(self) -> bool:
        """Whether it generates, and does not merely ask."""
        return self.method.rpartition("/")[2] in _GENERATING

    @property
    def finished(self) -> RequestFinished | None:
        """The engine's last word, where the request came to an end without a fault."""
        end = self.events.end if self.events is not None else None
        return end if isinstance(end, RequestFinished) else None

    @property
    def is_waiting(self) -> bool:
        """Whether it has asked for tokens and none has come."""
        return self.is_generation and (self.events is None or not self.events.committed_tokens)

    @property
    def has_line(self) -> bool:
        """Whether the log has the one line of how it ended.

        Of a request that the engine had and did not fail, GenerationService writes it.
        """
        had = self.events is not None and (self.events.end is None or self.finished is not None)
        return self.is_logged or had

    @property
    def seconds(self) -> float:
        """Its age, or how long it took."""
        return ((self.ended_ns or time.perf_counter_ns()) - self.started_ns) / 1e9


class CallObserver(Protocol):
    """Told of every call when it has ended; must return at once."""

    def call_ended(self, call: Call) -> None:
        """The call's fields are final."""
        ...


_call: ContextVar[Call | None] = ContextVar("call", default=None)


class Calls:
    """Keeps the calls that are being handled; used on the event loop only."""

    def __init__(self, observers: Iterable[CallObserver] = ()) -> None:
        self._observers = tuple(observers)
        self._active: dict[int, Call] = {}

    @property
    def active(self) -> Sequence[Call]:
        """Calls that have not ended, the oldest first."""
        return tuple(self._active.values())

    def open(self, call: Call) -> None:
        """A call began."""
        self._active[id(call)] = call
        _call.set(call)

    def close(self, call: Call) -> None:
        """A call ended; observers that fail are logged and harm nobody."""
        self._active.pop(id(call), None)
        call.ended_ns = time.perf_counter_ns()
        for observer in self._observers:
            try:
                observer.call_ended(call)
            except Exception:
                log.exception("call_observer_failed", observer=type(observer).__name__)


def name_call(request_id: str) -> None:
    """The call that is being handled has another id than was thought."""
    if (call := _call.get()) is not None:
        call.request_id = request_id


def note_request(request: GenerationRequest, events: EventStream) -> None:
    """The call that is being handled is in the engine now."""
    if (call := _call.get()) is not None:
        call.request, call.events = request, events
