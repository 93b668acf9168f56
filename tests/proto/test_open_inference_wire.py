"""Names and numbers of the Open Inference Protocol are those of its specification.

They are written out here from open_inference_grpc.proto of kserve/open-inference-protocol (2023), which Triton's
grpc_service.proto shares: clients that were built against either speak to the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from respsd.service.oip import open_inference_pb2 as oip

SPECIFIED = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live 1 bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready 1 bool",
    "ModelReadyRequest": "name 1 string, version 2 string",
    "ModelReadyResponse": "ready 1 bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name 1 string, version 2 string, extensions 3 string*",
    "ModelMetadataRequest": "name 1 string, version 2 string",
    "ModelMetadataResponse": (
        "name 1 string, versions 2 string*, platform 3 string, inputs 4 TensorMetadata*, outputs 5 TensorMetadata*"
    ),
    "ModelMetadataResponse.TensorMetadata": "name 1 string, datatype 2 string, shape 3 int64*",
    "ModelInferRequest": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 ParametersEntry*, "
        "inputs 5 InferInputTensor*, outputs 6 InferRequestedOutputTensor*, raw_input_contents 7 bytes*"
    ),
    "ModelInferRequest.InferInputTensor": (
        "name 1 string, datatype 2 string, shape 3 int64*, parameters 4 ParametersEntry*, "
        "contents 5 InferTensorContents"
    ),
    "ModelInferRequest.InferRequestedOutputTensor": "name 1 string, parameters 2 ParametersEntry*",
    "ModelInferResponse": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 ParametersEntry*, "
        "outputs 5 InferOutputTensor*, raw_output_contents 6 bytes*"
    ),
    "ModelInferResponse.InferOutputTensor": (
        "name 1 string, datatype 2 string, shape 3 int64*, parameters 4 ParametersEntry*, "
        "contents 5 InferTensorContents"
    ),
    "InferParameter": (
        "bool_param 1 bool, int64_param 2 int64, string_param 3 string, double_param 4 double, uint64_param 5 uint64"
    ),
    "InferTensorContents": (
        "bool_contents 1 bool*, int_contents 2 int32*, int64_contents 3 int64*, uint_contents 4 uint32*, "
        "uint64_contents 5 uint64*, fp32_contents 6 float*, fp64_contents 7 double*, bytes_contents 8 bytes*"
    ),
}


def described(message: DescriptorProto) -> str:
    """A message's fields, as SPECIFIED writes them."""
    fields = []
    for field in message.field:
        kind = (
            field.type_name.rpartition(".")[2]
            or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        )
        many = "*" if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
        fields.append(f"{field.name} {field.number} {kind}{many}")
    return ", ".join(fields)


def messages(nested_in: str, found: Iterable[DescriptorProto]) -> dict[str, str]:
    """Every message by its name below the package, but for the entries of maps."""
    named: dict[str, str] = {}
    for message in found:
        if message.options.map_entry:
            assert described(message) == "key 1 string, value 2 InferParameter"
            continue
        named[nested_in + message.name] = described(message)
        named |= messages(f"{nested_in}{message.name}.", message.nested_type)
    return named


def test_every_message_is_as_specified() -> None:
    file = FileDescriptorProto.FromString(oip.DESCRIPTOR.serialized_pb)
    assert file.package == "inference"
    assert messages("", file.message_type) == SPECIFIED


def test_the_service_and_its_methods_are_as_specified() -> None:
    service = oip.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == "inference.GRPCInferenceService"
    calls = {"ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"}
    assert set(service.methods_by_name) == calls
    for method in service.methods:
        assert (method.input_type.name, method.output_type.name) == (f"{method.name}Request", f"{method.name}Response")
        assert not method.client_streaming
        assert not method.server_streaming
