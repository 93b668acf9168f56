"""Whether an action fits into what the engine reserved memory for."""

from __future__ import annotations

from dataclasses import dataclass

from respsd.control.action import Action


@dataclass(frozen=True, slots=True)
class Excess:
    """The first knob of an action that is over its limit."""

    knob: str
    value: int
    limit: int


def excess(action: Action, reserved: Action) -> Excess | None:
    """Where `action` is larger than `reserved` allows; None where it fits. `off` always fits."""
    for knob in ("total_tokens", "depth", "top_k"):
        value, limit = getattr(action, knob), getattr(reserved, knob)
        if value > limit:
            return Excess(knob, value, limit)
    return None
