"""The one table from respsd's errors to gRPC's codes, and the status message that a failed call ends with."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from respsd import errors

CODES: Mapping[type[errors.RespsdError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownPolicy: grpc.StatusCode.NOT_FOUND,
    errors.UnknownModel: grpc.StatusCode.NOT_FOUND,
    errors.PolicyRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ChangeRefused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Overtaken: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ArchiveInvalid: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TryLater: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueueTooSlow: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.EngineUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.EngineFault: grpc.StatusCode.INTERNAL,
    errors.CheckpointError: grpc.StatusCode.INTERNAL,
    errors.DemoModelUnavailable: grpc.StatusCode.INTERNAL,
    errors.SettingsError: grpc.StatusCode.INTERNAL,
    errors.CannotListen: grpc.StatusCode.INTERNAL,
    errors.StorageError: grpc.StatusCode.INTERNAL,
    errors.DatabaseDamaged: grpc.StatusCode.INTERNAL,
    errors.UpdateFailed: grpc.StatusCode.INTERNAL,
    errors.LearningPaused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CalibrationFailed: grpc.StatusCode.INTERNAL,
    errors.TrainingDataError: grpc.StatusCode.INTERNAL,
}

MOST_MESSAGE_BYTES = 1000
"""Of a failed call's message. Clients take 8 KiB of trailers; a byte may need three there, and the message is twice."""
MOST_FIELD_BYTES = 300
"""Of a refused field's name, which stands there once more."""
_NOT_OVERRIDDEN = ("Method not implemented!",)
"""What the generated base of a service says of a method that the service does not have."""


def code_of(error: BaseException) -> grpc.StatusCode:
    """The code of an error; INTERNAL for one that nobody foresaw."""
    if isinstance(error, NotImplementedError) and error.args == _NOT_OVERRIDDEN:
        return grpc.StatusCode.UNIMPLEMENTED
    for kind in type(error).__mro__:
        if kind in CODES:
            return CODES[kind]
    return grpc.StatusCode.INTERNAL


def status_of(error: BaseException, request_id: str) -> status_pb2.Status:
    """The google.rpc.Status of a failed call. INTERNAL says nothing of the fault, which may hold paths or prompts."""
    code = code_of(error)
    number, _ = code.value
    if code is grpc.StatusCode.INTERNAL:
        return status_pb2.Status(code=number, message=f"internal error; the log has it under request {request_id}")
    return status_pb2.Status(code=number, message=_shortened(str(error)), details=_details(error))


def _details(error: BaseException) -> list[AnyMessage]:
    match error:
        case errors.InvalidRequest():
            told = _shortened(str(error))
            field = _shortened(error.field, MOST_FIELD_BYTES)
            violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=told)
            return [_packed(error_details_pb2.BadRequest(field_violations=[violation]))]
        case errors.TryLater():
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
            return [_packed(retry)]
    return []


def _shortened(text: str, most: int = MOST_MESSAGE_BYTES) -> str:
    """As much as finds room in the headers that a status travels in; past it the caller would hear of the headers."""
    data = text.encode(errors="replace")
    return text if len(data) <= most else data[:most].decode(errors="ignore") + "..."


def _packed(message: error_details_pb2.BadRequest | error_details_pb2.RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
