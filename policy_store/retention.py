"""Which versions stay when old ones are cleared away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policy_store.flags import Flags
from policy_store.registry import VersionSummary


@dataclass(frozen=True, slots=True)
class Collection:
    """What a clearing away did, or would do."""

    removed: tuple[int, ...]
    kept: dict[int, str]
    """Why each version that is left was kept."""


def plan(versions: Sequence[VersionSummary], flags: Flags, keep: int) -> Collection:
    """Decide for every version: what an alias points to, what is pinned, their parents, and the newest `keep` stay."""
    newest = {each.version for each in sorted(versions, key=lambda each: each.version)[-keep:]} if keep else set()
    pinned = None if flags.pin is None else flags.pin.version
    child_of = {each.parent: each for each in versions if each.aliases}
    kept: dict[int, str] = {}
    for each in versions:
        if each.aliases:
            kept[each.version] = ", ".join(each.aliases)
        elif each.version == pinned:
            kept[each.version] = "pinned"
        elif each.version in child_of:
            child = child_of[each.version]
            kept[each.version] = f"parent of version {child.version}, the {', '.join(child.aliases)}"
        elif each.version in newest:
            kept[each.version] = f"one of the newest {keep}"
    return Collection(tuple(each.version for each in versions if each.version not in kept), kept)
