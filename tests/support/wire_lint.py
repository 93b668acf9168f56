"""Rules for .proto files, after buf's STANDARD and COMMENTS categories, over what the compiler makes of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\.v[1-9][0-9]*")

# Field numbers of descriptor.proto: a comment's place is a path of these and of indexes.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _ONEOFS = 2, 3, 4, 8
_VALUES, _METHODS = 2, 2

Path_ = tuple[int, ...]


def compiled(folder: Path) -> FileDescriptorSet:
    """The folder's .proto files as the compiler reads them, with comments; raises where it does not."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(folder), "--include_source_info"]
        subprocess.run([*command, f"--descriptor_set_out={out}", *files], check=True)
        return FileDescriptorSet.FromString(out.read_bytes())


class Linter:
    """Looks at one file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._complaints: list[str] = []
        self._commented = {tuple(each.path) for each in file.source_code_info.location if each.leading_comments.strip()}

    def complaints(self) -> list[str]:
        """What breaks a rule, each with its place."""
        self._check_file()
        for index, message in enumerate(self._file.message_type):
            self._check_message(message, (_MESSAGES, index), f"{self._file.package}.{message.name}")
        for index, enum in enumerate(self._file.enum_type):
            self._check_enum(enum, (_ENUMS, index), f"{self._file.package}.{enum.name}")
        for index, service in enumerate(self._file.service):
            self._check_service(service, (_SERVICES, index), f"{self._file.package}.{service.name}")
        return self._complaints

    def _check_file(self) -> None:
        path, package = PurePosixPath(self._file.name), self._file.package
        self._require(SNAKE.fullmatch(path.stem), self._file.name, "is no lower_snake_case file name")
        self._require(PACKAGE.fullmatch(package), self._file.name, f"package {package!r} has no version at its end")
        self._require(
            str(path.parent) == package.replace(".", "/"), self._file.name, "does not lie where its package says"
        )
        self._require(self._file.syntax == "proto3", self._file.name, "is not proto3")
        self._require(not self._file.public_dependency, self._file.name, "imports publicly")
        used = set(_used_types(self._file))
        for name in self._file.dependency:
            folder = str(PurePosixPath(name).parent).replace("/", ".")
            self._require(any(each.startswith(f".{folder}.") for each in used), self._file.name, f"does not use {name}")

    def _check_message(self, message: DescriptorProto, path: Path_, name: str) -> None:
        self._require(PASCAL.fullmatch(message.name), name, "is no PascalCase message name")
        self._require(path in self._commented, name, "has no comment")
        for index, field in enumerate(message.field):
            place = f"{name}.{field.name}"
            self._require(SNAKE.fullmatch(field.name), place, "is no lower_snake_case field name")
            self._require((*path, _FIELDS, index) in self._commented, place, "has no comment")
        synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
        for index, oneof in enumerate(message.oneof_decl):
            if index not in synthetic:
                place = f"{name}.{oneof.name}"
                self._require(SNAKE.fullmatch(oneof.name), place, "is no lower_snake_case oneof name")
                self._require((*path, _ONEOFS, index) in self._commented, place, "has no comment")
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                self._check_message(nested, (*path, _NESTED, index), f"{name}.{nested.name}")
        for index, enum in enumerate(message.enum_type):
            self._check_enum(enum, (*path, _NESTED_ENUMS, index), f"{name}.{enum.name}")

    def _check_enum(self, enum: EnumDescriptorProto, path: Path_, name: str) -> None:
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper()
        self._require(PASCAL.fullmatch(enum.name), name, "is no PascalCase enum name")
        self._require(path in self._commented, name, "has no comment")
        self._require(not enum.options.allow_alias, name, "allows two names of one number")
        first = enum.value[0]
        self._require(
            (first.name, first.number) == (f"{prefix}_UNSPECIFIED", 0),
            name,
            f"does not begin with {prefix}_UNSPECIFIED = 0",
        )
        for index, value in enumerate(enum.value):
            place = f"{name}.{value.name}"
            well_named = UPPER.fullmatch(value.name) and value.name.startswith(f"{prefix}_")
            self._require(well_named, place, f"is no UPPER_SNAKE_CASE name that begins with {prefix}_")
            self._require((*path, _VALUES, index) in self._commented, place, "has no comment")

    def _check_service(self, service: ServiceDescriptorProto, path: Path_, name: str) -> None:
        self._require(
            PASCAL.fullmatch(service.name) and service.name.endswith("Service"), name, "is no name ending in Service"
        )
        self._require(path in self._commented, name, "has no comment")
        for index, method in enumerate(service.method):
            place = f"{name}.{method.name}"
            self._require(PASCAL.fullmatch(method.name), place, "is no PascalCase method name")
            self._require((*path, _METHODS, index) in self._commented, place, "has no comment")
            for kind, asked in (("Request", method.input_type), ("Response", method.output_type)):
                expected = f".{self._file.package}.{method.name}{kind}"
                self._require(
                    asked == expected, place, f"takes or gives {asked[1:]} instead of a {method.name}{kind} of its own"
                )

    def _require(self, holds: object, place: str, complaint: str) -> None:
        if not holds:
            self._complaints.append(f"{place} {complaint}")


def lint(files: FileDescriptorSet) -> Sequence[str]:
    """Complaints about all files."""
    found = [complaint for file in files.file for complaint in Linter(file).complaints()]
    asked = [method.input_type for file in files.file for service in file.service for method in service.method]
    return [*found, *(f"{name[1:]} is asked by two methods" for name in sorted(set(asked)) if asked.count(name) > 1)]


def _used_types(file: FileDescriptorProto) -> Iterator[str]:
    def of(message: DescriptorProto) -> Iterator[str]:
        yield from (field.type_name for field in message.field if field.type_name)
        for nested in message.nested_type:
            yield from of(nested)

    for message in file.message_type:
        yield from of(message)
    for service in file.service:
        for method in service.method:
            yield from (method.input_type, method.output_type)
