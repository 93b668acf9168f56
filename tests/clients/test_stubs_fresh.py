"""The committed stubs say what proto/ says, whichever compiler is installed."""

from __future__ import annotations

import inspect
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import Message
from grpc_tools import protoc

from respsd.service.oip import open_inference_pb2, open_inference_pb2_grpc
from respsd_client.v1 import (
    action_pb2,
    generation_pb2,
    generation_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    status_pb2,
    status_pb2_grpc,
)

PROTO = Path(__file__).resolve().parents[2] / "proto"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
STUBS = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (action_pb2, generation_pb2, policy_pb2, status_pb2, open_inference_pb2)
}
SERVICES = (
    (generation_pb2.DESCRIPTOR.services_by_name["GenerationService"], generation_pb2_grpc.GenerationServiceServicer),
    (policy_pb2.DESCRIPTOR.services_by_name["PolicyService"], policy_pb2_grpc.PolicyServiceServicer),
    (status_pb2.DESCRIPTOR.services_by_name["StatusService"], status_pb2_grpc.StatusServiceServicer),
    (
        open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
        open_inference_pb2_grpc.GRPCInferenceServiceServicer,
    ),
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """What the installed compiler makes of every file in proto/, with comments."""
    out = tmp_path_factory.mktemp("protos") / "set.bin"
    files = [str(file) for file in sorted(PROTO.rglob("*.proto"))]
    arguments = [f"-I{PROTO}", f"-I{WELL_KNOWN}", f"--descriptor_set_out={out}", "--include_source_info", *files]
    assert protoc.main(["protoc", *arguments]) == 0
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file}


def bare(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """A copy without what depends on the compiler: file options, JSON names, source positions."""
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("options")
    copy.ClearField("source_code_info")
    for message in copy.message_type:
        _forget_json_names(message)
    return copy


def _forget_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _forget_json_names(nested)


def test_every_file_has_its_stubs_and_they_agree(compiled):
    assert compiled.keys() == STUBS.keys()
    for name, file in compiled.items():
        stub = descriptor_pb2.FileDescriptorProto.FromString(STUBS[name].serialized_pb)
        assert bare(file) == bare(stub), f"{name} was edited: run proto/generate.py"


@pytest.mark.parametrize(("service", "servicer"), SERVICES)
def test_service_stubs_have_the_methods_of_the_file(service, servicer):
    methods = {name for name, _ in inspect.getmembers(servicer, inspect.isfunction)}
    assert methods == set(service.methods_by_name)


@pytest.mark.parametrize("name", sorted(STUBS))
def test_every_declaration_has_a_comment(compiled, name):
    file = compiled[name]
    commented = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
    missing = [label for path, label in declarations(file) if path not in commented]
    assert missing == []


@pytest.mark.parametrize(("service", "servicer"), SERVICES)
def test_every_call_has_its_own_request_and_response(service, servicer):
    seen: list[str] = []
    for method in service.methods:
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"
        seen += [method.input_type.name, method.output_type.name]
    assert len(seen) == len(set(seen))


def test_enums_begin_with_unspecified():
    for file in STUBS.values():
        for enum in file.enum_types_by_name.values():
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")


def declarations(file: descriptor_pb2.FileDescriptorProto) -> list[tuple[tuple[int, ...], str]]:
    """Source path and name of each message, field, oneof, enum, value, service and method of a file."""
    found: list[tuple[tuple[int, ...], str]] = []

    def add(path: tuple[int, ...], items: object, label: str) -> None:
        for index, item in enumerate(items):  # type: ignore[arg-type,var-annotated]
            found.append(((*path, index), f"{label}{item.name}"))

    add((4,), file.message_type, "")
    for index, message in enumerate(file.message_type):
        add((4, index, 2), message.field, f"{message.name}.")
        real = [one for one in message.oneof_decl if not one.name.startswith("_")]  # the rest are optional fields
        add((4, index, 8), real, f"{message.name}.")
    add((5,), file.enum_type, "")
    for index, enum in enumerate(file.enum_type):
        add((5, index, 2), enum.value, f"{enum.name}.")
    add((6,), file.service, "")
    for index, service in enumerate(file.service):
        add((6, index, 2), service.method, f"{service.name}.")
    return found


def test_messages_are_of_the_wire_package():
    request: Message = generation_pb2.GenerateRequest()
    assert request.DESCRIPTOR.full_name == "respsd.v1.GenerateRequest"
    assert type(request).__module__ == "respsd_client.v1.generation_pb2"
