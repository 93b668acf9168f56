"""Random messages for every method of the services: legal fields with wild values, and bytes that are no message."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

IN_FLIGHT = 48
PATIENCE_SECONDS = 60.0
"""Longer than any answer takes: a call that is not answered by then hangs."""
FORBIDDEN = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "ABORTED", "DEADLINE_EXCEEDED"}
"""DEADLINE_EXCEEDED is the patience's; nobody sends another deadline."""
NOT_THERE = {"/grpc.health.v1.Health/List"}
"""A method that the health package declares and does not have; no other may be UNIMPLEMENTED."""

_INTEGERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    0.5,
    -1.0,
    1e-5,
    1e-320,
    1e300,
    -1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
    2.0,
    100.5,
)
_TEXTS = (
    "", " ", "a", "the cat sat", "\0", "\n", "off", "champion", "baseline", "learner", "1", "-1", "9" * 20,
    "\u202e\u0000\ud7ff", "𝕏" * 40, "x" * 300, "y" * 5_000, "%s%n{}", "../../etc/passwd", "'; DROP TABLE requests;--",
    "</s>", "<s>" * 50, "é" * 200, "user", "assistant",
)  # fmt: skip
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_TAME: dict[int, tuple[object, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: (0.5, 0.75, 1.0),
    FieldDescriptor.CPPTYPE_FLOAT: (0.5, 0.75, 1.0),
    FieldDescriptor.CPPTYPE_UINT32: (1, 2, 3, 4, 8),
    FieldDescriptor.CPPTYPE_UINT64: (1, 2, 3),
}
"""Values that most fields take, so that some messages are asked for in earnest."""
_DEEPEST = 6


@dataclass
class FuzzReport:
    """What was answered, and which calls must never be answered so."""

    calls: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method and status."""
    faults: list[str] = field(default_factory=list)


class Messages:
    """Makes request bytes; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._left_out = 0.2
        self._tame = False

    def of(self, descriptor: Descriptor) -> bytes:
        """A message with wild values, or one that was broken, or noise."""
        kind = self._rng.random()
        if kind < 0.15:
            return self._rng.randbytes(self._rng.choice((0, 1, 2, 3, 10, 100, 3000)))
        self._left_out = self._rng.choice((0.2, 0.5, 0.8))
        self._tame = self._rng.random() < 0.4
        message = GetMessageClass(descriptor)()
        self._fill(message, 0)
        data = message.SerializeToString()
        return data if kind < 0.65 else self._broken(data)

    def _fill(self, message: Message, depth: int) -> None:
        for each in message.DESCRIPTOR.fields:
            # Where the first fields, which hold prompts, are there more often, more messages get to the engine.
            if self._rng.random() < (self._left_out if each.number > 2 else 0.1):
                continue
            if _is_repeated(each):
                self._fill_many(message, each, depth)
            elif each.message_type is None:
                setattr(message, each.name, self._value(each))
            elif depth < _DEEPEST:
                child = getattr(message, each.name)
                child.SetInParent()
                self._fill(child, depth + 1)

    def _fill_many(self, message: Message, each: FieldDescriptor, depth: int) -> None:
        count = self._rng.choice((0, 1, 1, 2, 3, 7, 70))
        target = getattr(message, each.name)
        kind = each.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
            for _ in range(count):
                if value.message_type is None:
                    target[self._value(key)] = self._value(value)
                else:
                    self._fill(target[self._value(key)], depth + 1)
        elif kind is None:
            target.extend(self._value(each) for _ in range(count))
        elif depth < _DEEPEST:
            for _ in range(min(count, 3)):
                self._fill(target.add(), depth + 1)

    def _value(self, each: FieldDescriptor) -> object:
        kind = each.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._rng.random() < 0.5
        if self._tame and kind in _TAME:
            return self._rng.choice(_TAME[kind])
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return self._rng.choice((self._rng.choice(_FLOATS), self._rng.uniform(0, 2)))
        if kind == FieldDescriptor.CPPTYPE_STRING:
            text = self._rng.choice(_TEXTS)
            return text if each.type == FieldDescriptor.TYPE_STRING else self._rng.randbytes(len(text))
        low, high = _RANGES[kind]
        if each.enum_type is not None and self._rng.random() < 0.7:
            return self._rng.choice(each.enum_type.values).number
        return max(
            low, min(high, self._rng.choice((-1, 1, 1, 1)) * self._rng.choice((*_INTEGERS, self._rng.randrange(300))))
        )

    def _broken(self, data: bytes) -> bytes:
        """Cut, changed, doubled, put into each other, or followed by nonsense."""
        rng, changed = self._rng, bytearray(data)
        match rng.randrange(6):
            case 0:
                return data[: rng.randrange(len(data) + 1)]
            case 1:
                for _ in range(rng.randrange(1, 9)):
                    if changed:
                        changed[rng.randrange(len(changed))] = rng.randrange(256)
                return bytes(changed)
            case 2:
                return data + data
            case 3:
                at = rng.randrange(len(data) + 1)
                return data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]
            case 4:  # fields that nobody knows, of every wire type, groups that do not end among them
                return data + bytes([rng.choice((0xF8, 0xF9, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE)), 0x07]) + rng.randbytes(9)
            case _:  # nested until the parser gives up
                nested = data
                for _ in range(rng.choice((3, 120))):
                    if len(nested) > 60_000:
                        break
                    nested = bytes([rng.choice((0x0A, 0x12, 0x1A))]) + _varint(len(nested)) + nested
                return nested


class Fuzzer:
    """Sends messages to all methods of some services, many calls at a time."""

    def __init__(self, channel: grpc.aio.Channel, methods: Sequence[MethodDescriptor], seed: int) -> None:
        self._channel = channel
        self._methods = methods
        self._seed = seed
        self._report = FuzzReport()

    async def run(self, calls: int) -> FuzzReport:
        """Make so many calls, the same number to each method."""
        numbers = iter(range(calls))

        async def send() -> None:
            for number in numbers:
                method = self._methods[number % len(self._methods)]
                data = Messages(self._seed * 10**9 + number).of(method.input_type)
                await self._call(method, data, number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(send())
        return self._report

    async def _call(self, method: MethodDescriptor, data: bytes, number: int) -> None:
        service = method.containing_service.full_name
        path = f"/{service}/{method.name}"
        try:
            if method.client_streaming or method.server_streaming:
                await self._stream(path, data, client_streams=method.client_streaming)
            else:
                await self._channel.unary_unary(path)(data, timeout=PATIENCE_SECONDS)
            end = "OK"
        except grpc.aio.AioRpcError as error:
            end = error.code().name
            # An answer whose details do not fit into the trailers is lost on its way.
            lost = "metadata size" in (error.details() or "")
            if end in FORBIDDEN or lost or (end == "UNIMPLEMENTED" and path not in NOT_THERE):
                self._report.faults.append(
                    f"{path} number {number} of seed {self._seed}: {end} {error.details()!r} for {data[:200]!r}"
                )
        self._report.calls += 1
        self._report.ends[method.name, end] += 1

    async def _stream(self, path: str, data: bytes, *, client_streams: bool) -> None:
        if client_streams:

            async def messages():  # type: ignore[no-untyped-def]
                yield data

            call = self._channel.stream_stream(path)(messages(), timeout=PATIENCE_SECONDS)
        else:
            call = self._channel.unary_stream(path)(data, timeout=PATIENCE_SECONDS)
        async for _ in call:
            pass


def _is_repeated(each: FieldDescriptor) -> bool:
    if hasattr(each, "is_repeated"):
        return bool(each.is_repeated)
    return bool(each.label == FieldDescriptor.LABEL_REPEATED)  # protobuf 6.30


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
