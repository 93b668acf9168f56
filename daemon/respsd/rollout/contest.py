"""What is compared with what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from respsd.control.controller import Controller
from respsd.control.static import StaticController

Kind = Literal["candidate", "last-good", "baseline", "off"]
"""`candidate`: a candidate against the champion. The others are holdouts: the champion against what it must beat."""

OFF_ARM = "off"
"""Arm of windows that decode plainly so that the champion is compared with that."""


@dataclass(frozen=True, slots=True, eq=False)
class Arm:
    """One side of a comparison, pinned: an alias that moves makes another contest."""

    name: str
    """What its windows carry as their arm."""
    controller: Controller

    @property
    def version(self) -> int | None:
        """The policy version; None for plain decoding and for the built-in baseline."""
        return self.controller.version

    @property
    def is_off(self) -> bool:
        """Whether it always decodes plainly."""
        return isinstance(self.controller, StaticController) and self.controller.action.is_off


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """A subject that must prove itself and the control that it is measured against, both live."""

    kind: Kind
    subject: Arm
    """The candidate; in a holdout the champion."""
    control: Arm
    """The champion; in a holdout last-good, the baseline or plain decoding."""

    @property
    def aliases(self) -> dict[str, int | None]:
        """The version that each alias must serve for what it says to count; plain decoding has no alias."""
        return {arm.name: arm.version for arm in (self.subject, self.control) if arm.name != OFF_ARM}

    def __str__(self) -> str:
        return f"{self.subject.name} {_version(self.subject)} against {self.control.name} {_version(self.control)}"


def _version(arm: Arm) -> str:
    return "built-in" if arm.version is None else str(arm.version)
