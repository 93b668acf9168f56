"""The Open Inference Protocol, version 2: what KServe and Triton clients call.

ModelInfer is Generate in other words: the same reader, limits, roles and queue, and the same statuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import respsd
from respsd.engine.api import ModelInfo
from respsd.errors import InvalidRequest, UnknownModel
from respsd.service.generation import GenerationServicer
from respsd.service.inference_options import Options, Value
from respsd.service.inference_tensors import add_text, elements
from respsd.service.interceptor import Context
from respsd.service.oip import open_inference_pb2 as oip
from respsd.service.oip import open_inference_pb2_grpc as oip_grpc
from respsd_client.v1 import generation_pb2

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
VERSION = "1"
"""The one version of the served model: the daemon serves no other beside it."""
_ONE_TEXT = ([1], [1, 1])
"""Shapes of the text."""


class InferenceServicer(oip_grpc.GRPCInferenceServiceServicer):
    """Answers by way of GenerationService."""

    def __init__(
        self,
        generation: GenerationServicer,
        model: ModelInfo,
        *,
        is_live: Callable[[], bool],
        is_ready: Callable[[], bool],
    ) -> None:
        self._generation = generation
        self._model = model
        self._is_live = is_live
        self._is_ready = is_ready

    async def ServerLive(  # noqa: N802  the wire's name
        self, _request: oip.ServerLiveRequest, _context: Context
    ) -> oip.ServerLiveResponse:
        """Whether the engine makes progress."""
        return oip.ServerLiveResponse(live=self._is_live())

    async def ServerReady(  # noqa: N802
        self, _request: oip.ServerReadyRequest, _context: Context
    ) -> oip.ServerReadyResponse:
        """Whether requests are taken."""
        return oip.ServerReadyResponse(ready=self._is_ready())

    async def ModelReady(  # noqa: N802
        self, request: oip.ModelReadyRequest, _context: Context
    ) -> oip.ModelReadyResponse:
        """Whether this model is served and requests are taken."""
        return oip.ModelReadyResponse(ready=self._serves(request.name, request.version) and self._is_ready())

    async def ServerMetadata(  # noqa: N802
        self, _request: oip.ServerMetadataRequest, _context: Context
    ) -> oip.ServerMetadataResponse:
        """Name and version of the daemon."""
        return oip.ServerMetadataResponse(name="respsd", version=respsd.__version__)

    async def ModelMetadata(  # noqa: N802
        self, request: oip.ModelMetadataRequest, _context: Context
    ) -> oip.ModelMetadataResponse:
        """The tensors of ModelInfer."""
        self._check_model("name", request.name, request.version)
        tensor = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name=self._model.target,
            versions=[VERSION],
            platform="respsd",
            inputs=[tensor(name=TEXT_INPUT, datatype="BYTES", shape=[1])],
            outputs=[tensor(name=name, datatype="BYTES", shape=[1]) for name in (TEXT_OUTPUT, FINISH_REASON)],
        )

    async def ModelInfer(  # noqa: N802
        self, request: oip.ModelInferRequest, context: Context
    ) -> oip.ModelInferResponse:
        """Generate to the end."""
        self._check_model("model_name", request.model_name, request.model_version)
        wanted = _wanted(request)
        message = generation_pb2.GenerateRequest()
        options = Options(message)
        shape = _read_inputs(request, message, options)
        try:
            answer = await self._generation.Generate(message, context)
        except InvalidRequest as error:
            raise options.renamed(error) from None
        return self._answer(request, answer, wanted, shape)

    def _serves(self, name: str, version: str) -> bool:
        return name in (self._model.target, self._model.target.rpartition("/")[2]) and version in ("", VERSION)

    def _check_model(self, field: str, name: str, version: str) -> None:
        if not self._serves(name, version):
            raise UnknownModel(field, name, version, f"{self._model.target}, version {VERSION}")

    def _answer(
        self,
        request: oip.ModelInferRequest,
        answer: generation_pb2.GenerateResponse,
        wanted: list[str],
        shape: list[int],
    ) -> oip.ModelInferResponse:
        finished = answer.finished
        reason = generation_pb2.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower()
        response = oip.ModelInferResponse(model_name=request.model_name, model_version=VERSION, id=request.id)
        response.parameters["prompt_tokens"].int64_param = finished.usage.prompt_tokens
        response.parameters["completion_tokens"].int64_param = finished.usage.completion_tokens
        response.parameters["seed"].int64_param = finished.seed
        texts = {TEXT_OUTPUT: answer.text, FINISH_REASON: reason}
        for name in wanted:
            add_text(response, name, texts[name], shape, raw=bool(request.raw_input_contents))
        return response


def _wanted(request: oip.ModelInferRequest) -> list[str]:
    """Names of the outputs that are asked for."""
    known = (TEXT_OUTPUT, FINISH_REASON)
    for index, output in enumerate(request.outputs):
        if output.name not in known:
            raise InvalidRequest(f"outputs[{index}].name", output.name, f"known are {', '.join(known)}")
    return [output.name for output in request.outputs] or list(known)


def _read_inputs(
    request: oip.ModelInferRequest, message: generation_pb2.GenerateRequest, options: Options
) -> list[int]:
    """Put text and options into a GenerateRequest; returns the text's shape. Raises InvalidRequest."""
    options.set_all(((name, _value(name, one)) for name, one in sorted(request.parameters.items())), "parameters")
    shape: list[int] | None = None
    for index, tensor in enumerate(request.inputs):
        found = elements(request, index)
        if tensor.name == TEXT_INPUT:
            if shape is not None or tensor.datatype != "BYTES" or list(tensor.shape) not in _ONE_TEXT:
                given = f"{tensor.datatype} {list(tensor.shape)}"
                raise InvalidRequest(f"inputs.{TEXT_INPUT}", given, "it must be one text: BYTES, shape [1] or [1, 1]")
            shape, message.prompt.text = list(tensor.shape), _text(found[0], f"inputs.{TEXT_INPUT}")
        else:
            label = f"inputs.{tensor.name}"
            values = [_text(one, label) if isinstance(one, bytes) else one for one in found]
            options.set_all([(tensor.name, values[0] if len(values) == 1 else values)], "inputs")
    if shape is None:
        raise InvalidRequest("inputs", [tensor.name for tensor in request.inputs], f"{TEXT_INPUT} must be among them")
    return shape


def _value(name: str, parameter: oip.InferParameter) -> Value:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        raise InvalidRequest(f"parameters.{name}", None, "it must hold a value")
    value: Any = getattr(parameter, kind)
    return value  # type: ignore[no-any-return]


def _text(data: bytes, label: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(label, f"{len(data)} bytes", "they must be UTF-8 text") from None
