"""Every error that respsd names has a gRPC code and an exit code, and callers learn what they may."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from support.serving import served

from respsd import errors
from respsd.cli import exit_codes
from respsd.engine.stub import StubEngine
from respsd.service.oip import open_inference_pb2, open_inference_pb2_grpc
from respsd.service.status import CODES, code_of, status_of

NAMED = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.RespsdError) and kind is not errors.RespsdError
]


@pytest.mark.parametrize("kind", NAMED)
def test_every_error_has_its_codes(kind):
    assert kind in CODES
    assert kind in exit_codes.OF_ERROR


def test_codes_of_a_subclass_are_its_parents():
    class TooLong(errors.InvalidRequest):
        """For this test."""

    error = TooLong("prompt", 5, "at most 4")
    assert code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
    assert exit_codes.of_error(error) is exit_codes.ExitCode.USAGE
    assert code_of(ValueError()) is grpc.StatusCode.INTERNAL


def test_invalid_request_names_its_field_in_the_details():
    status = status_of(errors.InvalidRequest("sampling.top_p", 7.0, "it must be at most 1"), "id")
    detail = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(detail)
    assert detail.field_violations[0].field == "sampling.top_p"
    assert detail.field_violations[0].description == status.message
    assert "7.0" in status.message
    assert "at most 1" in status.message


def test_overload_says_when_to_come_back():
    status = status_of(errors.Overloaded("the queue", 8, 8, retry_after_seconds=2.5), "id")
    detail = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(detail)
    assert detail.retry_delay.ToTimedelta().total_seconds() == 2.5


@pytest.mark.parametrize("error", [ValueError("/secret/path"), errors.EngineFault("/secret/path")])
def test_internal_errors_keep_their_text_to_themselves(error):
    status = status_of(error, "id-7")
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in status.message
    assert "id-7" in status.message


@pytest.mark.parametrize("name", ["y" * 100_000, "𝕏" * 20_000], ids=["ascii", "wide"])
async def test_a_long_name_in_a_message_does_not_cost_the_caller_the_status(name: str) -> None:
    """A status travels in headers; one that is too long for them arrives as RESOURCE_EXHAUSTED."""
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="there is no model") as caught:
            await stub.ModelMetadata(open_inference_pb2.ModelMetadataRequest(name=name))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("name", ["y" * 20_000, "𝕏" * 5_000], ids=["ascii", "wide"])
async def test_a_long_name_of_a_field_does_not_cost_the_caller_the_status(name: str) -> None:
    """Callers name the tensors, and a refusal names the tensor."""
    message = open_inference_pb2.ModelInferRequest(model_name="stub")
    message.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"\xff")
    async with served(StubEngine()) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        refused = pytest.raises(grpc.aio.AioRpcError, match="'1 bytes' is not allowed; they must be UTF-8")
        with structlog.testing.capture_logs() as lines, refused as caught:
            await stub.ModelInfer(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
    found = error_details_pb2.BadRequest()
    assert status_pb2.Status.FromString(details).details[0].Unpack(found)
    assert found.field_violations[0].field.startswith(f"inputs.{name[:40]}")
    assert len(str(lines)) < 1000


def test_no_refusal_is_longer_than_a_status_may_be():
    status = status_of(errors.InvalidRequest("𝕏" * 10**5, "𝕏" * 10**5, "𝕏" * 10**5), "id")
    in_headers = 3 * len(status.message.encode()) + 4 * status.ByteSize() / 3
    assert in_headers < 8192 - 1024  # the rest is for the other trailers
