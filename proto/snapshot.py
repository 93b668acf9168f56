"""What the wire API promises, a line for each promise; `python proto/snapshot.py` writes it to snapshot.txt.

Programs that were built against an earlier API go on working while every line of the snapshot holds: messages, fields
and methods may be added, and none may go, change its number, its name, its type, or whether it can be unset. The
command refuses to drop a line unless `--breaking` is given. `make proto` runs it after `generate.py`, and a test holds
both against each other.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

import respsd_client

SNAPSHOT = Path(__file__).with_name("snapshot.txt")


def promises(file: FileDescriptorProto) -> Iterator[str]:
    """The lines of one file, sorted by nothing."""
    for message in file.message_type:
        yield from _message(message, f"{file.package}.{message.name}")
    for enum in file.enum_type:
        yield from _enum(enum, f"{file.package}.{enum.name}")
    for service in file.service:
        for method in service.method:
            asked = ("stream " if method.client_streaming else "") + method.input_type[1:]
            given = ("stream " if method.server_streaming else "") + method.output_type[1:]
            yield f"{file.package}.{service.name}/{method.name}: {asked} -> {given}"


def present() -> list[str]:
    """The promises of the generated stubs, sorted."""
    found: list[str] = []
    for module in pkgutil.walk_packages(respsd_client.__path__, "respsd_client."):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(module.name).DESCRIPTOR
            found += promises(_proto(descriptor))
    return sorted(found)


def snapshot() -> list[str]:
    """The promises that were made."""
    return SNAPSHOT.read_text(encoding="utf-8").splitlines()


def _proto(descriptor: FileDescriptor) -> FileDescriptorProto:
    proto = FileDescriptorProto()
    descriptor.CopyToProto(proto)
    return proto


def _message(message: DescriptorProto, name: str) -> Iterator[str]:
    yield f"message {name}"
    entries = {f".{name}.{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
    for field in message.field:
        yield f"{name}.{field.name} = {field.number}: {_type(message, field, entries)}"
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _message(nested, f"{name}.{nested.name}")
    for enum in message.enum_type:
        yield from _enum(enum, f"{name}.{enum.name}")


def _enum(enum: EnumDescriptorProto, name: str) -> Iterator[str]:
    yield from (f"enum {name}.{value.name} = {value.number}" for value in enum.value)


def _type(message: DescriptorProto, field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    if field.type_name in entries:
        key, value = entries[field.type_name].field
        return f"map<{_type(message, key, {})}, {_type(message, value, {})}>"
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    kind = field.type_name[1:] or scalar
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {kind}"
    if field.proto3_optional:
        return f"optional {kind}"
    return f"{kind} in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else kind


def main() -> int:
    """Write the snapshot; 1 where a promise would be broken."""
    lines = present()
    broken = sorted(set(snapshot()) - set(lines)) if SNAPSHOT.exists() else []
    if broken and "--breaking" not in sys.argv[1:]:
        sys.stderr.write("\n".join([*broken, "would be broken; nothing written (--breaking breaks them)\n"]))
        return 1
    SNAPSHOT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(lines)} promises, {len(broken)} broken\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
