"""Typed reading of a JSON object's fields; every fault is an InvalidManifest that names the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import NoReturn, TypeVar

from policy_store.errors import InvalidManifest

T = TypeVar("T")


class FieldReader:
    """Reads the fields of one JSON object."""

    def __init__(self, document: dict[str, object], prefix: str = "") -> None:
        self._document = document
        self._prefix = prefix

    @classmethod
    def parse(cls, text: bytes) -> FieldReader:
        """Read JSON text; NaN and Infinity, which are not JSON, are refused."""
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as fault:
            raise InvalidManifest("text", f"is not JSON: {fault}") from fault
        if not isinstance(document, dict):
            raise InvalidManifest("text", "is not a JSON object")
        return cls(document)

    def only(self, keys: Collection[str]) -> None:
        """Refuse keys other than these."""
        for key in self._document:
            if key not in keys:
                raise InvalidManifest(self._prefix + key, "is not a known field")

    def has(self, key: str) -> bool:
        """Whether the object has the field at all."""
        return key in self._document

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """None where the field is null, else what `read` makes of it; a missing field is a fault."""
        return None if self._value(key) is None else read(key)

    def section(self, key: str, read: Callable[[FieldReader], T]) -> T | None:
        """None where the field is null, else what `read` makes of the nested object's fields."""
        nested = self.optional(key, self.mapping)
        return None if nested is None else read(FieldReader(nested, f"{self._prefix}{key}."))

    def text(self, key: str) -> str:
        value = self._value(key)
        return value if isinstance(value, str) else self._fault(key, "a string")

    def integer(self, key: str) -> int:
        return self._integer(key, self._value(key))

    def integers(self, key: str) -> tuple[int, ...]:
        return tuple(self._integer(key, item) for item in self._list(key, self._value(key)))

    def floats(self, key: str) -> tuple[float, ...]:
        return tuple(self._float(key, item) for item in self._list(key, self._value(key)))

    def mapping(self, key: str) -> dict[str, object]:
        value = self._value(key)
        return value if isinstance(value, dict) else self._fault(key, "an object")

    def triple(self, key: str) -> tuple[int, int, int]:
        return self._triple(key, self._value(key))

    def triples(self, key: str) -> tuple[tuple[int, int, int], ...]:
        return tuple(self._triple(key, item) for item in self._list(key, self._value(key)))

    def _value(self, key: str) -> object:
        if key not in self._document:
            raise InvalidManifest(self._prefix + key, "is missing")
        return self._document[key]

    def _list(self, key: str, value: object) -> list[object]:
        return value if isinstance(value, list) else self._fault(key, "a list")

    def _integer(self, key: str, value: object) -> int:
        # bool is an int to Python, not to JSON
        return value if isinstance(value, int) and not isinstance(value, bool) else self._fault(key, "an integer")

    def _float(self, key: str, value: object) -> float:
        try:
            return value if isinstance(value, float) else float(self._integer(key, value))
        except OverflowError:
            self._fault(key, "a double")

    def _triple(self, key: str, value: object) -> tuple[int, int, int]:
        items = [self._integer(key, item) for item in self._list(key, value)]
        return (items[0], items[1], items[2]) if len(items) == 3 else self._fault(key, "three integers")

    def _fault(self, key: str, wanted: str) -> NoReturn:
        raise InvalidManifest(self._prefix + key, f"is not {wanted}: {json.dumps(self._document[key])[:80]}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
