"""The version that is plain decoding, for a champion that lost to it."""

from __future__ import annotations

from policy_store import PolicyStore, StoreError
from respsd.control.action import OFF
from respsd.control.manifests import static_manifest, triple
from respsd.errors import StorageError


def off_version(store: PolicyStore, *, actor: str, code_version: str) -> int:
    """The newest good static version whose action is `off`, made where there is none; raises StorageError."""
    try:
        for each in reversed(store.list()):
            if each.state == "good" and each.action == triple(OFF):
                return each.version
        draft = static_manifest(OFF, code_version=code_version, note="plain decoding")
        return store.create(draft, actor=actor, reason="plain decoding was measured to be faster than the champion")
    except StoreError as fault:
        raise StorageError(str(fault)) from fault
