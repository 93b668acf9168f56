"""The store itself: create, load, export and import versions, list them, move aliases, remove, read the audit log."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from policy_store import audit, flags, migrations, registry, retention, schema
from policy_store.archive import MAX_ARCHIVE_BYTES, Archive, read_archive, write_archive
from policy_store.artifact import (
    ASIDE,
    TEMPORARY_PREFIX,
    StoredPolicy,
    read_version,
    sha256,
    version_files,
    write_version,
)
from policy_store.audit import AuditEntry, Change, Event, HistoryQuery
from policy_store.change import StoreChange
from policy_store.errors import (
    InvalidManifest,
    ReadOnlyStore,
    StoreNotFound,
    StoreUnavailable,
    VersionCorrupt,
)
from policy_store.flags import Flags
from policy_store.manifest import Manifest, ManifestDraft
from policy_store.registry import VersionSummary
from policy_store.retention import Collection
from policy_store.sqlite import reader_engine, writer_engine
from policy_store.weights import Weights, check_weights, encode_weights

Clock = Callable[[], int]
"""UTC, nanoseconds since the epoch."""

_log = logging.getLogger(__name__)


class PolicyStore:
    """A policy store in a folder. Safe to use from several threads, and from several processes at once."""

    def __init__(self, path: Path, clock: Clock = time.time_ns, *, read_only: bool = False) -> None:
        """Open the store, making it where there is none.

        :param read_only: never write or create anything; works beside a daemon that has the store open, and without one

        Raises StoreNotFound (read_only, nothing there) or StoreUnavailable.
        """
        self.path = path
        self._clock = clock
        self._versions = path / "versions"
        file = path / "registry.db"
        self._writer: Engine | None = None
        with self._faults_named():
            if read_only and not file.exists():
                raise StoreNotFound(path)
            if not read_only:
                self._versions.mkdir(parents=True, exist_ok=True)
                self._writer = writer_engine(file, synchronous="FULL")
                with self._writer.begin() as connection:
                    self._prepare(connection)
            self._reader = reader_engine(file)
            with self._reader.begin() as connection:
                self._check_schema(connection)

    def create(
        self,
        draft: ManifestDraft,
        weights: Weights | None = None,
        *,
        actor: str,
        reason: str = "",
        figures: Mapping[str, object] | None = None,
    ) -> int:
        """Publish a new version and return its number.

        Raises InvalidManifest or InvalidWeights, and then nothing was written.
        """
        return self._publish("create", draft, weights or {}, actor, reason, figures)

    def export(self, name: str | int) -> bytes:
        """A version as an archive for another store; raises VersionUnknown or VersionCorrupt."""
        version = self.load(name).manifest.version
        return write_archive(version_files(self._versions, version))

    def import_archive(self, archive: Archive | bytes, *, actor: str, reason: str = "") -> int:
        """Publish what another store exported, under a new number of this store; its origin stays in the manifest.

        Raises ArchiveRefused, InvalidManifest or InvalidWeights on any doubt, and then nothing was written.
        """
        found = read_archive(archive, MAX_ARCHIVE_BYTES) if isinstance(archive, bytes) else archive
        draft = found.draft()
        return self._publish("import", draft, found.weights, actor, reason, draft.origin)

    def load(self, name: str | int) -> StoredPolicy:
        """Read a version by number or alias, every file checked against what was published.

        Quarantined versions load too. Raises VersionUnknown or VersionCorrupt.
        """
        while True:
            with self._reading() as connection:
                version = registry.resolve(connection, name)
                published = registry.published_sha256(connection, version)
            try:
                policy, found = read_version(self._versions, version)
                if found != published:
                    raise VersionCorrupt(version, "its manifest is not the one that was published")
            except VersionCorrupt:
                with self._reading() as connection:
                    if version in registry.known_versions(connection):
                        raise
                continue  # another process has removed it meanwhile; an alias points elsewhere now
            return policy

    def list(self) -> Sequence[VersionSummary]:
        """Every version, oldest first."""
        with self._reading() as connection:
            return registry.summaries(connection)

    def resolve(self, name: str | int) -> int:
        """The version that a number or an alias means; raises VersionUnknown."""
        with self._reading() as connection:
            return registry.resolve(connection, name)

    def aliases(self) -> dict[str, int]:
        """Every alias and the version that it points to."""
        with self._reading() as connection:
            return registry.all_aliases(connection)

    def flags(self) -> Flags:
        """Whether the champion is pinned and learning frozen."""
        with self._reading() as connection:
            return flags.read(connection)

    @contextmanager
    def changing(
        self, *, actor: str, reason: str, figures: Mapping[str, object] | None = None
    ) -> Iterator[StoreChange]:
        """Several changes that take effect together when the block ends, and not at all where it raises.

        Nobody else writes meanwhile, so what the block reads stays true until it ends.

            with store.changing(actor="rollout", reason="faster", figures={"n": 120}) as change:
                change.move_alias("last-good", change.aliases()["champion"])
                change.move_alias("champion", 7, "promote")
        """
        with self._writing() as connection:
            change = StoreChange(connection, Change(self._now(), actor, reason, figures))
            yield change
        if change.removed:
            self._delete_removed()

    def set_alias(
        self, alias: str, version: int, *, actor: str, reason: str, figures: Mapping[str, object] | None = None
    ) -> int | None:
        """Point an alias to a version; the audit entry's id, or None where it points there already.

        Raises InvalidAlias, VersionUnknown or VersionQuarantined.
        """
        with self.changing(actor=actor, reason=reason, figures=figures) as change:
            change.move_alias(alias, version)
        return next(iter(change.entries), None)

    def quarantine(self, version: int, *, actor: str, reason: str) -> int | None:
        """Mark a version as never to be served; the audit entry's id, or None where it is so already.

        Aliases that point to it stay as they are. Raises VersionUnknown.
        """
        with self.changing(actor=actor, reason=reason) as change:
            change.quarantine(version)
        return next(iter(change.entries), None)

    def remove(self, version: int, *, actor: str, reason: str) -> None:
        """Delete a version for good; its number and its history stay.

        Raises VersionUnknown, or VersionInUse where an alias points to it.
        """
        with self.changing(actor=actor, reason=reason) as change:
            change.remove(version)

    def collect(self, keep: int, *, actor: str, reason: str, dry_run: bool = False) -> Collection:
        """Remove old versions, but for the newest `keep`, what aliases point to or is pinned, and their parents."""
        if keep < 0:
            raise ValueError(f"keep is {keep}, which is no number of versions")
        if dry_run:
            with self._reading() as connection:
                return retention.plan(registry.summaries(connection), flags.read(connection), keep)
        with self.changing(actor=actor, reason=reason) as change:
            planned = retention.plan(change.list(), change.flags(), keep)
            for version in planned.removed:
                change.remove(version)
        return planned

    def audit(self) -> Sequence[AuditEntry]:
        """Every change, oldest first."""
        return self.history(HistoryQuery())

    def history(self, query: HistoryQuery) -> Sequence[AuditEntry]:
        """The changes that a query asks for, oldest first."""
        with self._reading() as connection:
            return audit.entries(connection, query)

    def close(self) -> None:
        """Let go of the files; idempotent."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    def __enter__(self) -> PolicyStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, connection: Connection) -> None:
        (health,) = connection.exec_driver_sql("PRAGMA quick_check(1)").one()
        if health != "ok":
            raise StoreUnavailable(self.path, f"registry.db is damaged: {health}")
        if schema.schema_version(connection) == 0:
            schema.create_schema(connection)
        migrations.migrate(connection)
        self._check_schema(connection)
        self._recover(connection)

    def _check_schema(self, connection: Connection) -> None:
        found = schema.schema_version(connection)
        if not migrations.OLDEST_READABLE <= found <= schema.SCHEMA_VERSION:
            fault = f"registry.db has schema {found}, this code reads {schema.SCHEMA_VERSION}"
            raise StoreUnavailable(self.path, fault)

    def _publish(
        self,
        event: Event,
        draft: ManifestDraft,
        weights: Weights,
        actor: str,
        reason: str,
        figures: Mapping[str, object] | None,
    ) -> int:
        check_weights(draft, weights)
        data = encode_weights(weights) if weights else None
        with self._writing() as connection:
            self._recover(connection)
            if draft.parent is not None and draft.parent not in registry.known_versions(connection):
                raise InvalidManifest("parent", f"is {draft.parent}, which the store does not have")
            now = self._now()
            manifest = Manifest.publish(
                draft,
                version=registry.last_version(connection) + 1,
                created=now,
                weights_sha256=None if data is None else sha256(data),
            )
            text = manifest.to_json()
            write_version(self._versions, text, manifest.version, data)
            registry.add_version(connection, manifest, sha256(text))
            audit.append(connection, event, Change(now, actor, reason, figures), to_version=manifest.version)
        return manifest.version

    def _delete_removed(self) -> None:
        """Delete the folders of versions whose rows are gone; what a crash leaves, the next writer deletes."""
        try:
            with self._writing() as connection:
                self._recover(connection)
        except StoreUnavailable as fault:
            _log.warning("folders of removed versions are left for later: %s", fault)

    def _recover(self, connection: Connection) -> None:
        """Deal with folders that no row publishes. The write lock is held, so nobody is at work on them."""
        known = registry.known_versions(connection)
        orphans = []
        for folder in self._versions.iterdir():
            name = folder.name
            if name.startswith(TEMPORARY_PREFIX):
                shutil.rmtree(folder)
            elif name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) not in known:
                orphans.append(int(name))
        removed = registry.removed_versions(connection) if orphans else set()
        for version in sorted(orphans):
            if version in removed:
                shutil.rmtree(self._versions / str(version))
            else:
                self._adopt(connection, version)

    def _adopt(self, connection: Connection, version: int) -> None:
        """Publish a folder that its writer could not, or set it aside where it is not to be trusted."""
        try:
            if version <= registry.last_version(connection):
                raise VersionCorrupt(version, "its number was given out before and the version is gone")
            policy, found = read_version(self._versions, version)
        except VersionCorrupt as fault:
            aside = self._versions / ASIDE / f"{version}-{self._clock()}"
            aside.parent.mkdir(exist_ok=True)
            (self._versions / str(version)).rename(aside)
            registry.burn_version(connection, version)
            audit.append(connection, "set-aside", Change(self._now(), "store", fault.fault), to_version=version)
            _log.error("set aside unpublished version %d as %s: %s", version, aside, fault.fault)
        else:
            registry.add_version(connection, policy.manifest, found)
            reason = "its folder was complete and had no row"
            audit.append(connection, "adopt", Change(self._now(), "store", reason), to_version=version)
            _log.warning("adopted version %d: %s", version, reason)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._writer is None:
            raise ReadOnlyStore(self.path)
        with self._faults_named(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._faults_named(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as fault:
            raise StoreUnavailable(self.path, f"registry.db: {fault.orig}") from fault
        except OSError as fault:
            raise StoreUnavailable(self.path, str(fault)) from fault

    def _now(self) -> str:
        return audit.timestamp(self._clock())
