"""The one error that calls raise, and how it is read from a failed call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import grpc

from respsd_client import details

REQUEST_ID_KEY = "x-request-id"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """A request field that the daemon refused."""

    field: str
    """Path in the wire message, for example `sampling.temperature`."""
    description: str


class ServiceError(Exception):
    """A call failed; `code` says how, the message says why."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        field_violations: tuple[FieldViolation, ...] = (),
        retry_after_seconds: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.field_violations = field_violations
        self.retry_after_seconds = retry_after_seconds
        """When the daemon asks to be tried again."""
        self.request_id = request_id
        """Names the call in the daemon's log."""

    @classmethod
    def from_rpc(cls, error: grpc.RpcError) -> ServiceError:
        """Read a failed call, its google.rpc details included."""
        call = cast("grpc.Call", error)  # errors of started calls are calls; the library's types do not say so
        trailing = _bytes_by_key(call.trailing_metadata())
        found = details.read(trailing.get(details.KEY, b""))
        request_id = trailing.get(REQUEST_ID_KEY)
        return cls(
            call.code(),
            call.details() or "",
            field_violations=tuple(FieldViolation(field, text) for field, text in found.field_violations),
            retry_after_seconds=found.retry_after_seconds,
            request_id=request_id.decode() if request_id is not None else None,
        )


@contextmanager
def service_errors() -> Iterator[None]:
    """Turn the library's errors of the calls inside into ServiceError."""
    try:
        yield
    except grpc.RpcError as error:
        raise ServiceError.from_rpc(error) from error


def _bytes_by_key(metadata: object) -> dict[str, bytes]:
    pairs = cast("list[tuple[str, str | bytes]]", list(metadata or ()))  # type: ignore[call-overload]
    return {key: value if isinstance(value, bytes) else value.encode() for key, value in pairs}
