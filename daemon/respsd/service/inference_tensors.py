"""Tensors of the Open Inference Protocol, in both of its forms: typed fields and raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from respsd.errors import InvalidRequest
from respsd.service.oip import open_inference_pb2 as oip

_FIELDS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
"""Data type to the field of its elements and to `struct`'s letter for one of them in raw form."""
_LENGTH = struct.Struct("<I")


def elements(request: oip.ModelInferRequest, index: int) -> list[Any]:
    """The elements of an input, texts as `bytes`; raises InvalidRequest where they are not what its shape says."""
    tensor = request.inputs[index]
    if tensor.datatype not in _FIELDS:
        limit = f"known are {', '.join(_FIELDS)}"
        raise InvalidRequest(f"inputs[{index}].datatype", tensor.datatype, limit)
    field, letter = _FIELDS[tensor.datatype]
    if request.raw_input_contents:
        if len(request.raw_input_contents) != len(request.inputs):
            given = f"{len(request.raw_input_contents)} entries"
            raise InvalidRequest("raw_input_contents", given, f"there must be one for each of {len(request.inputs)}")
        found = _raw_elements(request.raw_input_contents[index], letter, f"raw_input_contents[{index}]")
    else:
        found = list(getattr(tensor.contents, field))
    if len(found) != _size(tensor.shape, len(found)):
        limit = f"the input holds {len(found)} elements"
        raise InvalidRequest(f"inputs[{index}].shape", list(tensor.shape), limit)
    return found


def add_text(response: oip.ModelInferResponse, name: str, text: str, shape: Sequence[int], *, raw: bool) -> None:
    """Add an output of one text, in the form that the request had."""
    tensor = response.outputs.add(name=name, datatype="BYTES", shape=shape)
    data = text.encode()
    if raw:
        response.raw_output_contents.append(_LENGTH.pack(len(data)) + data)
    else:
        tensor.contents.bytes_contents.append(data)


def _size(shape: Sequence[int], most: int) -> int | None:
    """How many elements a shape has; None where they are over `most` or a dimension is negative.

    The product is given up once it is too large: a message has room for dimensions whose product takes minutes.
    """
    if any(size < 0 for size in shape):
        return None
    if 0 in shape:
        return 0
    count = 1
    for size in shape:
        count *= size
        if count > most:
            return None
    return count


def _raw_elements(data: bytes, letter: str, label: str) -> list[Any]:
    if letter:
        if len(data) % struct.calcsize(letter):
            raise InvalidRequest(label, f"{len(data)} bytes", f"an element has {struct.calcsize(letter)}")
        return [value for (value,) in struct.iter_unpack(f"<{letter}", data)]
    found, place = list[bytes](), 0
    while place < len(data):
        start = place + _LENGTH.size
        end = start + _LENGTH.unpack_from(data, place)[0] if start <= len(data) else len(data) + 1
        if end > len(data):
            raise InvalidRequest(label, f"{len(data)} bytes", "each element is its length in four bytes and its bytes")
        found.append(data[start:end])
        place = end
    return found
