"""What a client of KServe or Triton may ask for beside its text, and where that stands in a GenerateRequest.

Names are those of Triton's vLLM and TensorRT-LLM models and of KServe's generate API, besides respsd's own. A value
may be a parameter of the request, an entry of the JSON object `sampling_parameters`, or a tensor; as these clients send
most numbers as text, `"0.7"` is as good as 0.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from respsd.engine.request import Priority
from respsd.errors import InvalidRequest
from respsd.service.validation import PRIORITIES
from respsd_client.v1 import generation_pb2

Value = bool | int | float | str | list[Any]

_FIELDS: Mapping[str, tuple[type, str]] = {
    "max_tokens": (int, "stopping.max_new_tokens"),
    "max_new_tokens": (int, "stopping.max_new_tokens"),
    "min_tokens": (int, "stopping.min_new_tokens"),
    "min_new_tokens": (int, "stopping.min_new_tokens"),
    "min_length": (int, "stopping.min_new_tokens"),
    "stop": (list, "stopping.stop_strings"),
    "stop_words": (list, "stopping.stop_strings"),
    "stop_token_ids": (list, "stopping.stop_token_ids"),
    "ignore_eos": (bool, "stopping.ignore_eos"),
    "include_stop_str_in_output": (bool, "stopping.include_stop"),
    "temperature": (float, "sampling.temperature"),
    "top_p": (float, "sampling.top_p"),
    "top_k": (int, "sampling.top_k"),
    "min_p": (float, "sampling.min_p"),
    "repetition_penalty": (float, "sampling.repetition_penalty"),
    "frequency_penalty": (float, "sampling.frequency_penalty"),
    "presence_penalty": (float, "sampling.presence_penalty"),
    "seed": (int, "sampling.seed"),
    "random_seed": (int, "sampling.seed"),
    "skip_special_tokens": (bool, "skip_special_tokens"),
    "policy": (str, "speculation.policy"),
    "speculation": (bool, "speculation.off"),
    "learning_opt_out": (bool, "learning_opt_out"),
}
"""Option to its type and its field; `speculation` stands there the other way round."""

_TRITON_PRIORITIES = {0: Priority.NORMAL, 1: Priority.HIGH, 2: Priority.NORMAL, 3: Priority.LOW}
"""As Triton counts: 0 is its default, 1 goes first."""

_MOST_MICROSECONDS = 2**64 - 1
"""As Triton's clients send a timeout; a larger number in text may be past every float."""
_SHOWN = 64
"""Characters of an unknown name that its refusal repeats."""
KNOWN = (*_FIELDS, "exclude_input_in_output", "priority", "sampling_parameters", "stream", "timeout")


class Options:
    """Fills in a GenerateRequest, and remembers under which name a field was asked for."""

    def __init__(self, request: generation_pb2.GenerateRequest) -> None:
        """:param request: gets what is set."""
        self._request = request
        self._names = {"prompt": "inputs.text_input", "prompt.text": "inputs.text_input"}

    def set_all(self, options: Iterable[tuple[str, Value]], where: str) -> None:
        """Set options, each once; raises InvalidRequest naming `where` it stands and its name."""
        for name, value in options:
            shown = name[:_SHOWN].encode(errors="replace").decode()  # JSON can hold what no message may
            self._set(name, value, f"{where}.{shown}")

    def renamed(self, error: InvalidRequest) -> InvalidRequest:
        """A refusal of the request under the name that its caller knows the field by."""
        asked, _, rest = error.field.partition("[")
        name = self._names.get(asked)
        return error if name is None else InvalidRequest(f"{name}[{rest}" if rest else name, error.value, error.limit)

    def _set(self, name: str, value: Value, label: str) -> None:
        if name in _FIELDS:
            kind, path = _FIELDS[name]
            self._assign(path, _read(kind, value, label), label)
            return
        match name:
            case "sampling_parameters":
                self.set_all(_json_object(value, label).items(), label)
            case "exclude_input_in_output":
                self._assign("echo", not _read(bool, value, label), label)
            case "priority":
                self._assign("priority", _priority(value, label), label)
            case "timeout":
                self._assign("stopping.time_limit_seconds", _seconds(value, label), label)
            case "stream":
                if _read(bool, value, label):
                    raise InvalidRequest(label, True, "ModelInfer answers once; GenerateStream of respsd.v1 streams")
            case _:
                raise InvalidRequest(label, value, f"known are {', '.join(sorted(KNOWN))}")

    def _assign(self, path: str, value: Any, label: str) -> None:
        if path in self._names:
            raise InvalidRequest(label, value, f"{self._names[path]} sets the same")
        self._names[path] = label
        message: Message = self._request
        *parents, name = path.split(".")
        for parent in parents:
            message = getattr(message, parent)
        try:
            if path == "speculation.off":
                self._request.speculation.off = not value
            elif isinstance(value, list):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(label, value, "it does not fit the option's type") from error


def _read(kind: type, value: Value, label: str) -> Any:
    """A value as an option's type; raises InvalidRequest."""
    try:
        if kind is list:
            return _list(value)
        if kind is bool:
            return _bool(value)
        if isinstance(value, (bool, list)) or (kind is str) != isinstance(value, str):
            if isinstance(value, str):
                return kind(value)
            raise ValueError
        if kind is int and not float(value).is_integer():
            raise ValueError
        return kind(value)
    except (OverflowError, RecursionError, TypeError, ValueError):  # JSON holds null, objects, any depth
        names = {bool: "true or false", int: "a whole number", float: "a number", list: "a list", str: "a text"}
        raise InvalidRequest(label, value, f"it must be {names[kind]}") from None


def _bool(value: Value) -> bool:
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    if value not in (True, False):
        raise ValueError
    return bool(value)


def _list(value: Value) -> list[Any]:
    """A list, one in JSON, or a single value."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = json.loads(value)
    return value if isinstance(value, list) else [value]


def _json_object(value: Value, label: str) -> dict[str, Value]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(label, value, "it must be a JSON object")
    if "sampling_parameters" in found:
        raise InvalidRequest(label, value, "it must not hold sampling_parameters itself")
    return found


def _seconds(value: Value, label: str) -> float:
    """Of a timeout, which Triton counts in microseconds."""
    microseconds: int = _read(int, value, label)
    if abs(microseconds) > _MOST_MICROSECONDS:
        raise InvalidRequest(label, value, f"it must be at most {_MOST_MICROSECONDS} microseconds")
    return microseconds / 1e6


def _priority(value: Value, label: str) -> int:
    """By name, or by number as Triton counts."""
    words = {priority.name.lower(): priority for priority in Priority}
    found = None
    if isinstance(value, str):  # the digits are looked up and not read: a text may hold more than `int` takes
        digits = {str(number): priority for number, priority in _TRITON_PRIORITIES.items()}
        found = (words | digits).get(value.lower())
    elif isinstance(value, int) and not isinstance(value, bool):
        found = _TRITON_PRIORITIES.get(value)
    if found is None:
        raise InvalidRequest(label, value, f"it must be one of {', '.join(words)}, or 0 to 3 (1 goes first)")
    return next(number for number, priority in PRIORITIES.items() if priority is found and number)
