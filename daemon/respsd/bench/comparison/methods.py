"""The ways to decode that a benchmark compares, and their names on the command line. Nothing here imports torch.

Words: a *method* is one way to decode; a *stream* is one answer being generated, and the *concurrency* how many of
them run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from respsd.control.action import EAGLE3, OFF, Action
from respsd.errors import InvalidRequest

PROMPT_LOOKUP_TOKENS = 10
"""Drafted tokens of a step where `prompt-lookup` says no number."""


class Kind(Enum):
    """Who decodes, and who chooses the draft trees."""

    TRANSFORMERS = "transformers"
    """transformers' `generate` with its KV cache."""
    ASSISTED = "assisted"
    """The same, with a smaller model that drafts."""
    PROMPT_LOOKUP = "prompt-lookup"
    """The same, drafting from what stands in the prompt."""
    CONSTANT = "constant"
    """Our engine under one action."""
    SWEEP = "sweep"
    """Our engine under the constant action that was best on other questions."""
    CALIBRATED = "calibrated"
    """Our engine under the calibrated baseline, which goes by the number of streams."""
    POLICY = "policy"
    """Our engine under a stored policy."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to decode."""

    name: str
    """As it was written; names it in every table."""
    kind: Kind
    action: Action | None = None
    """Of CONSTANT."""
    policy: str | None = None
    """Version or alias, of POLICY."""
    assistant: str | None = None
    """Folder or hub id of the smaller model, of ASSISTED."""
    drafted_tokens: int = PROMPT_LOOKUP_TOKENS
    """A step, of PROMPT_LOOKUP."""

    @property
    def is_transformers(self) -> bool:
        """Whether transformers decodes, not our engine."""
        return self.kind in (Kind.TRANSFORMERS, Kind.ASSISTED, Kind.PROMPT_LOOKUP)

    def serves(self, concurrency: int) -> bool:
        """Whether it can run so many streams: transformers speculates for one stream only."""
        return concurrency == 1 or self.kind not in (Kind.ASSISTED, Kind.PROMPT_LOOKUP)


def parse_methods(text: str) -> list[Method]:
    """Read a comma-separated list; raises InvalidRequest naming what is no method, or stands in it twice."""
    methods = [parse_method(name.strip()) for name in text.split(",") if name.strip()]
    if not methods:
        raise InvalidRequest("methods", text, "name at least one")
    names = [method.name for method in methods]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest("methods", twice, "no method may stand in the list twice")
    return methods


def parse_method(name: str) -> Method:
    """Read one method's name; raises InvalidRequest."""
    head, _, rest = name.partition(":")
    match head, rest:
        case "transformers", "":
            return Method(name, Kind.TRANSFORMERS)
        case "assisted", model if model:
            return Method(name, Kind.ASSISTED, assistant=model)
        case "prompt-lookup", "":
            return Method(name, Kind.PROMPT_LOOKUP)
        case "prompt-lookup", count if count.isdecimal() and int(count) > 0:
            return Method(name, Kind.PROMPT_LOOKUP, drafted_tokens=int(count))
        case "off", "":
            return Method(name, Kind.CONSTANT, action=OFF)
        case "eagle3", "":
            return Method(name, Kind.CONSTANT, action=EAGLE3)
        case "sweep", "":
            return Method(name, Kind.SWEEP)
        case "calibrated", "":
            return Method(name, Kind.CALIBRATED)
        case "policy", policy if policy:
            return Method(name, Kind.POLICY, policy=policy)
        case shape, _ if shape.isdecimal() and name.count(":") == 2:
            return Method(name, Kind.CONSTANT, action=Action.parse(name.replace(":", ",")))
    known = (
        "transformers, assisted:MODEL, prompt-lookup[:TOKENS], off, eagle3, TT:d:k, sweep, calibrated, policy:VERSION, "
        "policy:ALIAS"
    )
    raise InvalidRequest("methods", name, f"known are {known}")


def parse_concurrencies(text: str) -> list[int]:
    """Read `1,8,32`; raises InvalidRequest."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidRequest("concurrency", text, "write positive numbers of streams like 1,8,32")
    return sorted({int(part) for part in parts})


def plain_method(methods: Sequence[Method]) -> Method:
    """The method that shows what plain decoding gives: `off`, else transformers' own, else the first."""
    plain = [method for method in methods if method.action == OFF]
    plain += [method for method in methods if method.kind is Kind.TRANSFORMERS]
    return plain[0] if plain else methods[0]
