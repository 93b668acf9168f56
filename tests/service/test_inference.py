"""The Open Inference Protocol over a real socket: the same text, refusals and queue as Generate."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from support.serving import eventually, served

from respsd.engine.request import Priority
from respsd.engine.stub import StubEngine, spell
from respsd.service.auth import Access, Tokens
from respsd.service.limits import Limits
from respsd.service.oip import open_inference_pb2 as oip
from respsd.service.oip import open_inference_pb2_grpc as oip_grpc
from respsd_client import AsyncClient

SECRET = "a-token-of-many-letters"


def request(
    text: str | bytes = "héllo", *, raw: bool = False, shape: tuple[int, ...] = (1,), **parameters: Any
) -> oip.ModelInferRequest:
    """A ModelInferRequest of one text, its parameters in the field of their type."""
    message = oip.ModelInferRequest(model_name="stub", id="name-of-mine")
    data = text.encode() if isinstance(text, str) else text
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=shape)
    if raw:
        message.raw_input_contents.append(struct.pack("<I", len(data)) + data)
    else:
        tensor.contents.bytes_contents.append(data)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


@asynccontextmanager
async def stub_of(server: Any) -> AsyncIterator[oip_grpc.GRPCInferenceServiceAsyncStub]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield oip_grpc.GRPCInferenceServiceStub(channel)


def violation(error: grpc.aio.AioRpcError) -> str:
    """The field that google.rpc.BadRequest names."""
    details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    found = error_details_pb2.BadRequest()
    assert status_pb2.Status.FromString(details).details[0].Unpack(found)
    return found.field_violations[0].field


async def test_the_text_is_that_of_generate_in_either_form():
    options = {"max_tokens": 30, "temperature": 0.8, "seed": 7}
    async with served(StubEngine()) as server, AsyncClient(server.address) as client, stub_of(server) as stub:
        expected = await client.generate("héllo", max_new_tokens=30, temperature=0.8, seed=7)
        typed = await stub.ModelInfer(request(**options))
        raw = await stub.ModelInfer(request(raw=True, shape=(1, 1), **options))
    assert [output.name for output in typed.outputs] == ["text_output", "finish_reason"]
    assert [output.contents.bytes_contents[0] for output in typed.outputs] == [expected.text.encode(), b"length"]
    assert not typed.raw_output_contents
    assert [list(output.shape) for output in raw.outputs] == [[1, 1], [1, 1]]
    text = expected.text.encode()
    assert raw.raw_output_contents[0] == struct.pack("<I", len(text)) + text
    assert (typed.model_name, typed.model_version, typed.id) == ("stub", "1", "name-of-mine")
    figures = {name: each.int64_param for name, each in typed.parameters.items()}
    assert figures == {"prompt_tokens": 6, "completion_tokens": 30, "seed": 7}


async def test_options_come_as_text_as_json_and_as_tensors():
    """Triton's clients send numbers as text; its vLLM model takes JSON, its TensorRT-LLM model takes tensors."""
    engine = StubEngine()
    async with served(engine) as server, AsyncClient(server.address) as client, stub_of(server) as stub:
        expected = await client.generate("héllo", max_new_tokens=9, temperature=0.8, seed=7)
        as_text = await stub.ModelInfer(request(max_tokens="9", temperature="0.8", seed="7"))
        as_json = request(sampling_parameters=json.dumps({"max_tokens": 9, "temperature": 0.8, "seed": 7}))
        as_tensors = request()
        as_tensors.inputs.add(name="max_tokens", datatype="INT32", shape=[1, 1]).contents.int_contents.append(9)
        as_tensors.inputs.add(name="temperature", datatype="FP64", shape=[1]).contents.fp64_contents.append(0.8)
        as_tensors.inputs.add(name="random_seed", datatype="UINT64", shape=[1]).contents.uint64_contents.append(7)
        as_tensors.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(False)
        answers = [as_text, await stub.ModelInfer(as_json), await stub.ModelInfer(as_tensors)]
    assert [answer.outputs[0].contents.bytes_contents[0] for answer in answers] == [expected.text.encode()] * 3


async def test_stop_words_echo_and_wanted_outputs():
    engine = StubEngine(next_token=spell("one two three"))
    async with served(engine) as server, stub_of(server) as stub:
        stopped = await stub.ModelInfer(request("x", stop='["zzz", "two"]'))
        one_word = await stub.ModelInfer(request("x", stop_words="two", include_stop_str_in_output=True))
        echoed = request("x", exclude_input_in_output=False)
        echoed.outputs.add(name="text_output")
        echo = await stub.ModelInfer(echoed)
    assert [each.contents.bytes_contents[0] for each in stopped.outputs] == [b"one ", b"stop_string"]
    assert one_word.outputs[0].contents.bytes_contents[0] == b"one two"
    assert [(each.name, each.contents.bytes_contents[0]) for each in echo.outputs] == [
        ("text_output", b"xone two three")
    ]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"temperature": -1.0}, "parameters.temperature", "must be 0"),
        ({"max_tokens": 0}, "parameters.max_tokens", "from 1"),
        ({"max_tokens": -1}, "parameters.max_tokens", "does not fit"),
        ({"max_tokens": "many"}, "parameters.max_tokens", "whole number"),
        ({"max_tokens": 2.5}, "parameters.max_tokens", "whole number"),
        ({"max_tokens": True}, "parameters.max_tokens", "whole number"),
        ({"ignore_eos": "perhaps"}, "parameters.ignore_eos", "true or false"),
        ({"beam_width": 4}, "parameters.beam_width", "known are"),
        ({"stream": True}, "parameters.stream", "answers once"),
        ({"stop": '["a", ""]'}, "parameters.stop[1]", "240"),
        ({"stop": "[1, 2]"}, "parameters.stop", "type"),
        ({"stop": "[1, 2"}, "parameters.stop", "a list"),
        ({"seed": 1, "random_seed": 2}, "parameters.seed", "sets the same"),
        ({"priority": "urgent"}, "parameters.priority", "low"),
        ({"priority": 9}, "parameters.priority", "0 to 3"),
        ({"sampling_parameters": "[]"}, "parameters.sampling_parameters", "JSON object"),
        ({"sampling_parameters": '{"top_p": 7}'}, "parameters.sampling_parameters.top_p", "at most 1"),
        ({"sampling_parameters": '{"\\ud800": 7}'}, "parameters.sampling_parameters.?", "known are"),
        ({"stop": "[" * 100_000}, "parameters.stop", "a list"),
        ({"timeout": "9" * 400}, "parameters.timeout", "at most 18446744073709551615 microseconds"),
        ({"timeout": "-" + "9" * 400}, "parameters.timeout", "microseconds"),
        ({"timeout": "0"}, "parameters.timeout", "over 0"),
        ({"priority": "9" * 5000}, "parameters.priority", "0 to 3"),
        ({"max_tokens": "9" * 5000}, "parameters.max_tokens", "whole number"),
        ({"temperature": "nan"}, "parameters.temperature", "must be 0"),
        ({"temperature": "9" * 400}, "parameters.temperature", "must be 0"),
        ({"sampling_parameters": '{"max_tokens": null}'}, "parameters.sampling_parameters.max_tokens", "whole number"),
        ({"sampling_parameters": '{"top_p": {}}'}, "parameters.sampling_parameters.top_p", "a number"),
        ({"text": ""}, "inputs.text_input", "at least 1 token"),
        ({"text": b"\xff"}, "inputs.text_input", "UTF-8"),
        ({"shape": (2,)}, "inputs[0].shape", "1 elements"),
        ({"shape": (1, 1, 1)}, "inputs.text_input", "one text"),
    ],
)
async def test_what_is_wrong_is_named_as_the_caller_knows_it(change, field, words):
    async with served(StubEngine()) as server, stub_of(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(request(**{"text": "x", **change}))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violation(caught.value) == field
    assert words in (caught.value.details() or "")


async def test_a_shape_of_very_many_dimensions_holds_nobody_up():
    """Their product would be a number of millions of digits."""
    async with served(StubEngine()) as server, stub_of(server) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(request("x", shape=(2**62,) * 300_000), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation(caught.value) == "inputs[0].shape"


async def test_priorities_are_known_by_name_and_by_number_in_text_too():
    engine, seen = StubEngine(), list[Priority]()
    engine._before_step = lambda asked, step: seen.append(asked.priority) if step == 0 else None
    async with served(engine) as server, stub_of(server) as stub:
        for given in ("HIGH", "1", 1, "0", "3"):
            await stub.ModelInfer(request("x", max_tokens=1, priority=given))
    assert seen == [Priority.HIGH] * 3 + [Priority.NORMAL, Priority.LOW]


async def test_inputs_and_outputs_that_are_not_the_models_are_refused():
    async with served(StubEngine()) as server, stub_of(server) as stub:
        nothing = oip.ModelInferRequest(model_name="stub")
        twice = request()
        twice.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"x")
        wrong_type = request()
        wrong_type.inputs[0].datatype = "FP16"
        cut = request(raw=True)
        cut.raw_input_contents[0] = cut.raw_input_contents[0][:-1]
        too_many = request(raw=True)
        too_many.raw_input_contents.append(b"")
        output = request()
        output.outputs.add(name="logits")
        empty = request()
        _ = empty.parameters["seed"]
        for message, field in (
            (nothing, "inputs"),
            (twice, "inputs.text_input"),
            (wrong_type, "inputs[0].datatype"),
            (cut, "raw_input_contents[0]"),
            (too_many, "raw_input_contents"),
            (output, "outputs[0].name"),
            (empty, "parameters.seed"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ModelInfer(message)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert violation(caught.value) == field


async def test_live_ready_and_metadata_describe_what_is_served():
    engine = StubEngine()
    async with served(engine) as server, stub_of(server) as stub:
        assert (await stub.ServerLive(oip.ServerLiveRequest())).live
        assert (await stub.ServerReady(oip.ServerReadyRequest())).ready
        assert (await stub.ModelReady(oip.ModelReadyRequest(name="stub", version="1"))).ready
        assert not (await stub.ModelReady(oip.ModelReadyRequest(name="stub", version="2"))).ready
        assert not (await stub.ModelReady(oip.ModelReadyRequest(name="another"))).ready
        daemon = await stub.ServerMetadata(oip.ServerMetadataRequest())
        model = await stub.ModelMetadata(oip.ModelMetadataRequest(name="stub"))
        assert (daemon.name, list(daemon.extensions)) == ("respsd", [])
        assert (model.name, list(model.versions)) == ("stub", ["1"])
        assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [("text_input", "BYTES", [1])]
        assert [one.name for one in model.outputs] == ["text_output", "finish_reason"]
        for call in (
            stub.ModelMetadata(oip.ModelMetadataRequest(name="another")),
            stub.ModelInfer(oip.ModelInferRequest(model_name="stub", model_version="3")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_tokens_are_asked_for_but_by_load_balancers(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"reader read {SECRET}\nwriter generate {SECRET[::-1]}\n")
    file.chmod(0o600)
    async with served(StubEngine(), access=Access(Tokens.read(file))) as server, stub_of(server) as stub:
        reader, writer = (("authorization", f"Bearer {secret}") for secret in (SECRET, SECRET[::-1]))
        assert (await stub.ServerLive(oip.ServerLiveRequest())).live
        assert (await stub.ModelReady(oip.ModelReadyRequest(name="stub"))).ready
        assert (await stub.ServerMetadata(oip.ServerMetadataRequest(), metadata=(reader,))).name == "respsd"
        assert (await stub.ModelInfer(request(max_tokens=1), metadata=(writer,))).outputs
        for call, code in (
            (stub.ServerMetadata(oip.ServerMetadataRequest()), grpc.StatusCode.UNAUTHENTICATED),
            (stub.ModelInfer(request()), grpc.StatusCode.UNAUTHENTICATED),
            (stub.ModelInfer(request(), metadata=(reader,)), grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is code


async def test_the_queue_limits_and_priorities_are_those_of_generate():
    engine, seen = StubEngine(max_running=1, max_waiting=2), list[Priority]()
    engine._before_step = lambda asked, step: seen.append(asked.priority) if step == 0 else None
    async with served(engine, limits=Limits(max_in_flight=3)) as server, stub_of(server) as stub:
        engine.gate.close()
        first = asyncio.ensure_future(stub.ModelInfer(request(max_tokens=1, priority=3)))
        await eventually(lambda: engine.load().waiting == 1)
        second = asyncio.ensure_future(stub.ModelInfer(request(max_tokens=1, priority="high")))
        await eventually(lambda: engine.load().waiting == 2)
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"the queue is full: 2 of 2, set by engine\.max_waiting"
        ) as caught:
            await stub.ModelInfer(request())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        engine.gate.open()
        assert (await first).outputs
        assert (await second).outputs
    assert seen == [Priority.HIGH, Priority.LOW]
