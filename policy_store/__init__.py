"""A store of immutable, numbered policy versions, with aliases that move and an audit log that only grows.

On disk a store is one folder:

    registry.db            versions with their state, aliases, audit log (SQLite, synchronous=FULL)
    versions/<n>/          one version, never changed after it is published
        manifest.json      what it is: kind, action table, observation schema, architecture, parent, hash of the weights
        policy.safetensors the weights; a static version has none
    versions/.tmp-*        a version being written; cleaned up when its writer is gone
    versions/.aside/       folders that are not, or no longer, a version that verifies
    daemon.lock            held by running daemons, so that work on the files alone can tell

The registry's row publishes a version: `create` writes the folder under a temporary name, syncs it, renames it and
commits the row last, all inside one write transaction, so a reader sees a version whole or not at all and two
processes never take one number. A crash between rename and commit leaves a folder without a row; the next writer
adopts it where it verifies and its number was never given out, else moves it to `.aside`. Numbers are never used twice.

    store = PolicyStore(path, clock)
    version = store.create(draft, weights, actor="trainer")
    store.set_alias("candidate", version, actor="trainer", reason="trained on rows 1000 to 9000")
    policy = store.load("candidate")          # StoredPolicy(manifest, weights), hash and shapes checked
    with store.changing(actor="rollout", reason="faster") as change:    # together or not at all
        change.move_alias("champion", version, "promote")
        change.drop_alias("candidate")

A version leaves as a tar (`export`) and comes back under a new number (`import_archive`), which trusts nothing that it
reads. Removal deletes the row first and the folder afterwards; the log remembers, and the number is burnt.

The package knows nothing of the daemon: numpy, safetensors and SQLAlchemy are all it needs, and nothing is pickled.
"""

from policy_store.archive import MAX_ARCHIVE_BYTES, Archive, read_archive
from policy_store.artifact import StoredPolicy
from policy_store.audit import AuditEntry, HistoryQuery
from policy_store.change import StoreChange
from policy_store.errors import (
    ArchiveRefused,
    InvalidAlias,
    InvalidManifest,
    InvalidWeights,
    ReadOnlyStore,
    StoreError,
    StoreInService,
    StoreNotFound,
    StoreUnavailable,
    VersionCorrupt,
    VersionInUse,
    VersionQuarantined,
    VersionUnknown,
)
from policy_store.flags import Flag, Flags
from policy_store.manifest import Architecture, Golden, Manifest, ManifestDraft, Normaliser
from policy_store.registry import VersionSummary
from policy_store.retention import Collection
from policy_store.store import PolicyStore

__all__ = [
    "MAX_ARCHIVE_BYTES",
    "Architecture",
    "Archive",
    "ArchiveRefused",
    "AuditEntry",
    "Collection",
    "Flag",
    "Flags",
    "Golden",
    "HistoryQuery",
    "InvalidAlias",
    "InvalidManifest",
    "InvalidWeights",
    "Manifest",
    "ManifestDraft",
    "Normaliser",
    "PolicyStore",
    "ReadOnlyStore",
    "StoreChange",
    "StoreError",
    "StoreInService",
    "StoreNotFound",
    "StoreUnavailable",
    "StoredPolicy",
    "VersionCorrupt",
    "VersionInUse",
    "VersionQuarantined",
    "VersionSummary",
    "VersionUnknown",
    "read_archive",
]
