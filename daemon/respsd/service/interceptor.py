"""What every call has around it: a request id in log and trailing metadata, and errors that end as one status."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from respsd.errors import DeadlineExceeded, InvalidRequest, RespsdError, TryLater
from respsd.service.auth import Authorizer, use_caller
from respsd.service.calls import TRACE_KEY, Call, Calls, TraceParent, name_call
from respsd.service.limits import Limits
from respsd.service.status import code_of, status_of

log = structlog.get_logger(__name__)

REQUEST_ID_KEY = "x-request-id"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Clients that have gRPC itself try again wait for so long (gRFC A6); what people read is in google.rpc.RetryInfo."""
_DEADLINE_SKEW_SECONDS = 0.05
"""A client counts from before its call arrived here, so it gives up at its deadline a little before the one here."""

_request_id: ContextVar[str] = ContextVar("request_id")

# Handlers of any service pass through here, so their messages have no common type.
Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Any]

_MAKERS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def current_request_id() -> str:
    """The id of the call that is being handled."""
    return _request_id.get()


def use_request_id(request_id: str, context: Context) -> None:
    """Name the call that is being handled, in its log lines and for its caller."""
    if _request_id.get(None) is None:
        structlog.contextvars.clear_contextvars()
    _request_id.set(request_id)
    name_call(request_id)
    structlog.contextvars.bind_contextvars(request_id=request_id)
    context.set_trailing_metadata(((REQUEST_ID_KEY, request_id),))


def is_request_id(text: str, longest: int) -> bool:
    """Whether a caller's id can go into metadata and logs: 1 to `longest` visible ASCII characters."""
    return 1 <= len(text) <= longest and all("!" <= character <= "~" for character in text)


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the type stubs only
    """Names calls, lets in who may make them and ends failed ones; no exception's text reaches a caller unless it was
    made for callers."""

    def __init__(
        self,
        calls: Calls | None = None,
        authorizer: Authorizer | None = None,
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        """:param authorizer: decides who may call what; without one everybody may everything."""
        self._calls = calls or Calls()
        self._authorizer = authorizer
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler, if there is one."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind, make = _MAKERS[handler.request_streaming, handler.response_streaming]
        behaviour: Behaviour = getattr(handler, kind)
        wrap = self._around_generator if inspect.isasyncgenfunction(behaviour) else self._around_coroutine
        return make(
            wrap(behaviour, handler_call_details.method),
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _around_coroutine(self, behaviour: Behaviour, method: str) -> Behaviour:
        async def call(request: object, context: Context) -> object:
            async with self._handled(method, context):
                return await behaviour(_checked(request), context)

        return call

    def _around_generator(self, behaviour: Behaviour, method: str) -> Behaviour:
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            async with self._handled(method, context):
                async for message in behaviour(_checked(request), context):
                    yield message

        return call

    @asynccontextmanager
    async def _handled(self, method: str, context: Context) -> AsyncIterator[None]:
        """One call from its name to its status."""
        call = Call(method, self._asked_id(context) or uuid.uuid4().hex, trace=_trace_parent(context))
        self._calls.open(call)
        use_request_id(call.request_id, context)
        if call.trace is not None:
            structlog.contextvars.bind_contextvars(trace_id=call.trace.trace_id)
        try:
            try:
                self._let_in(call, context)
                yield
            except Exception as error:  # noqa: BLE001  whatever it is, the caller gets a status
                call.code = code_of(error)
                call.refusal = error.reason if isinstance(error, RespsdError) else None
                await _fail(error, context, call)
        except asyncio.CancelledError:
            left = context.time_remaining()
            expired = left is not None and left <= _DEADLINE_SKEW_SECONDS
            call.code = grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
            if expired and call.is_waiting:
                call.refusal = DeadlineExceeded.reason
            _log_abandoned(call)
            raise
        finally:
            self._calls.close(call)

    def _asked_id(self, context: Context) -> str | None:
        """The caller's `x-request-id`, where it is fit to be echoed."""
        longest = self._limits().max_request_id
        for key, value in context.invocation_metadata() or ():
            if key == REQUEST_ID_KEY and isinstance(value, str) and is_request_id(value, longest):
                return value
        return None

    def _let_in(self, call: Call, context: Context) -> None:
        if self._authorizer is None:
            return
        metadata, subject = context.invocation_metadata() or (), _subject(context)
        caller = self._authorizer.authorize(call.method, context.peer(), metadata, subject)
        call.caller = caller.name
        use_caller(caller)
        structlog.contextvars.bind_contextvars(caller=caller.name)


class _Malformed:
    """Stands for a request whose bytes are no message; the library itself would answer with INTERNAL."""


def _tolerant(deserialize: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        try:
            return deserialize(data)
        except DecodeError:
            return _Malformed()

    return read


def _checked(request: object) -> object:
    """The request, or the requests of a stream as they come; raises InvalidRequest instead of one that is none."""
    if isinstance(request, AsyncIterator):
        return _each_checked(request)
    if isinstance(request, _Malformed):
        raise InvalidRequest("message", "bytes", "they are not the request's protobuf message")
    return request


async def _each_checked(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        yield _checked(request)


def _subject(context: Context) -> str | None:
    """Common name of the client's certificate, where TLS asked for one."""
    names = context.auth_context().get("x509_common_name", ())
    return next((name.decode(errors="replace") for name in names), None)


def _trace_parent(context: Context) -> TraceParent | None:
    for key, value in context.invocation_metadata() or ():
        if key == TRACE_KEY and isinstance(value, str):
            return TraceParent.parse(value)
    return None


async def _fail(error: Exception, context: Context, call: Call) -> NoReturn:
    """End the call with the error's status, unless its caller is gone."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    # A write to a caller who is gone fails so where it was under way; elsewhere the library cancels the handler.
    gone = isinstance(error, grpc.aio.InternalError) or context.done()
    if not gone or not (call.has_line or isinstance(error, grpc.aio.BaseError)):
        _log_failure(error, call)
    if gone:
        raise asyncio.CancelledError from error
    request_id = current_request_id()
    status = rpc_status.to_status(status_of(error, request_id))
    trailing = (*status.trailing_metadata, (REQUEST_ID_KEY, request_id))
    if isinstance(error, TryLater):
        trailing = (*trailing, (PUSHBACK_KEY, str(round(1000 * error.retry_after_seconds))))
    try:
        await context.abort(status.code, status.details, trailing)
    except grpc.aio.InternalError as gone_now:  # the caller left, or the deadline passed, as the status was on its way
        raise asyncio.CancelledError from gone_now


def _log_failure(error: Exception, call: Call) -> None:
    """The one line of a call that was refused or failed."""
    code = code_of(error)
    if code is grpc.StatusCode.INTERNAL:
        log.error("call_failed", method=call.method, exc_info=error)
    elif isinstance(error, RespsdError):  # the field and not the value, which may be part of a prompt
        field = error.field if isinstance(error, InvalidRequest) else None
        log.info("call_refused", method=call.method, code=code.name, error=type(error).__name__, field=field)
    else:
        return
    call.is_logged = True


def _log_abandoned(call: Call) -> None:
    """The one line of a request that nobody waits for any more and that no other line tells of."""
    if call.is_generation and not call.has_line:
        log.info("request_abandoned", finish_reason="cancelled", code=call.code.name, seconds=call.seconds)
