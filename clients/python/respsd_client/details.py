"""Reads google.rpc.Status, which gRPC servers attach to failed calls, without a package for it.

The messages are declared here, in a descriptor pool of their own: the same bytes as google/rpc/status.proto and
error_details.proto of googleapis-common-protos, of which only these fields matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from google.protobuf.message import Message

KEY = "grpc-status-details-bin"
_Field = descriptor_pb2.FieldDescriptorProto

# message -> fields as (name, number, type, repeated); a type that is text names a message declared here
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "Any": [("type_url", 1, _Field.TYPE_STRING, False), ("value", 2, _Field.TYPE_BYTES, False)],
    "Status": [("details", 3, "Any", True)],
    "FieldViolation": [
        ("field", 1, _Field.TYPE_STRING, False),
        ("description", 2, _Field.TYPE_STRING, False),
    ],
    "BadRequest": [("field_violations", 1, "FieldViolation", True)],
    "Duration": [("seconds", 1, _Field.TYPE_INT64, False), ("nanos", 2, _Field.TYPE_INT32, False)],
    "RetryInfo": [("retry_delay", 1, "Duration", False)],
}


@dataclass(frozen=True, slots=True)
class Details:
    """What a failed call's details say."""

    field_violations: tuple[tuple[str, str], ...] = ()
    """(field, description) pairs."""
    retry_after_seconds: float | None = None


def read(status: bytes) -> Details:
    """Read a serialized google.rpc.Status; details of other kinds are left aside."""
    violations: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None
    for any_detail in _parse("Status", status).details:  # type: ignore[attr-defined]
        match any_detail.type_url.rpartition("/")[2]:
            case "google.rpc.BadRequest":
                found = _parse("BadRequest", any_detail.value).field_violations  # type: ignore[attr-defined]
                violations = tuple((violation.field, violation.description) for violation in found)
            case "google.rpc.RetryInfo":
                delay = _parse("RetryInfo", any_detail.value).retry_delay  # type: ignore[attr-defined]
                retry_after = delay.seconds + delay.nanos / 1e9
    return Details(violations, retry_after)


def _parse(name: str, data: bytes) -> Message:
    return _CLASSES[name].FromString(data)


def _message_classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="details.proto", package="details", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".details.{kind}"
            else:
                added.type = _Field.Type.ValueType(kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"details.{name}") for name in _MESSAGES)
    return {descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in found}


_CLASSES = _message_classes()
