"""Which settings a running daemon takes anew on SIGHUP, and which need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from respsd.settings import Settings
from respsd.settings_loader import Key

LIVE = frozenset(
    {
        ("drain_seconds",),
        ("log",),
        ("limits",),
        ("tls",),
        ("auth",),
        ("exploration", "share"),
        ("admission", "max_in_flight"),
        ("admission", "max_client_requests"),
    }
)
"""Settings, and sections as a whole, that change without a restart."""
_FIXED_WITHIN = frozenset(
    {
        ("limits", "max_message_bytes"),  # an option of the listening socket
        ("tls", "client_ca"),  # whether clients must show a certificate is fixed when the server listens
    }
)


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new reading of the settings changed."""

    live: tuple[str, ...]
    """Names of settings that take effect now."""
    waiting: tuple[str, ...]
    """Names of settings that take effect at the next start."""


def is_live(key: Key) -> bool:
    """Whether a running daemon takes a new value of the setting."""
    return any(key[:size] in LIVE for size in range(1, len(key) + 1)) and key not in _FIXED_WITHIN


def changes(old: Settings, new: Settings) -> Changes:
    """Compare two readings."""
    changed = list(_different(old, new))
    # Whether there is TLS at all is fixed when the server listens.
    turned = (old.tls.certificate is None) != (new.tls.certificate is None)
    live = [key for key in changed if is_live(key) and not (turned and key[0] == "tls")]
    return Changes(
        tuple(".".join(key) for key in live),
        tuple(".".join(key) for key in changed if key not in live),
    )


def _different(old: BaseModel, new: BaseModel, above: Key = ()) -> Iterator[Key]:
    for name in type(old).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _different(before, after, (*above, name))
        elif before != after:
            yield (*above, name)
