"""What every table of the settings file is made of: its base and the kinds of values that several share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A table of the settings file. No number is infinite: what has no limit says `unlimited`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def auto_is_none(value: object) -> object:
    """Let `auto` stand for what the daemon works out."""
    return None if value == "auto" else value


def unlimited_is_none(value: object) -> object:
    """Let `unlimited` stand for no limit."""
    return None if value == "unlimited" else value


def numbers(value: object) -> object:
    """Let a list be written `4,8,16` too, which is how an environment variable says it."""
    return value.split(",") if isinstance(value, str) else value


Positive = Annotated[int, Field(ge=1)]
AutoPositive = Annotated[Positive | None, BeforeValidator(auto_is_none)]
"""A positive integer, or `auto` (None): the daemon measures or works it out."""
Unlimited = BeforeValidator(unlimited_is_none)
"""A limit that can be written `unlimited` (None)."""
