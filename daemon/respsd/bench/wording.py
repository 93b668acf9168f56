"""Figures as people read them."""

from __future__ import annotations

_MS = 1e3


def milliseconds(seconds: float | None) -> str | None:
    """Three figures are enough: 1234, 123, 12.3, 1.23."""
    if seconds is None:
        return None
    value = seconds * _MS
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def share(value: float) -> str:
    """A share in whole percent."""
    return f"{value:.0%}"
