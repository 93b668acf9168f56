"""Every failure that the policy store names."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Root of every error that the store raises on purpose."""


class StoreNotFound(StoreError):
    """There is no store at the path."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no policy store at {path}")
        self.path = path


class StoreUnavailable(StoreError):
    """The store cannot be opened, read or written: permissions, disk, damage, or a newer format."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"policy store {path}: {fault}")
        self.path = path
        self.fault = fault


class StoreInService(StoreError):
    """A daemon runs on the store, so its files are not to be changed behind the daemon's back."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"a daemon runs on the policy store at {path}")
        self.path = path


class ReadOnlyStore(StoreError):
    """A store opened for reading was asked to change."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"policy store {path} is open for reading only")
        self.path = path


class VersionUnknown(StoreError):
    """The store has no such version or alias."""

    def __init__(self, name: str | int) -> None:
        super().__init__(f"the store has no version or alias {str(name)!r}")
        self.name = str(name)


class VersionCorrupt(StoreError):
    """A published version's files are missing or are not what was published."""

    def __init__(self, version: int, fault: str) -> None:
        super().__init__(f"version {version}: {fault}")
        self.version = version
        self.fault = fault


class VersionQuarantined(StoreError):
    """An alias cannot be moved to a quarantined version."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} is quarantined")
        self.version = version


class InvalidManifest(StoreError):
    """A manifest contradicts itself or the format."""

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"manifest: {field} {fault}")
        self.field = field
        self.fault = fault


class InvalidWeights(StoreError):
    """Weights have a wrong name, type or shape for the manifest's architecture, or are not finite."""

    def __init__(self, tensor: str, fault: str) -> None:
        super().__init__(f"weights: {tensor} {fault}")
        self.tensor = tensor
        self.fault = fault


class InvalidAlias(StoreError):
    """An alias is not a lower-case word."""

    def __init__(self, alias: str) -> None:
        super().__init__(
            f"alias {alias!r} is not a letter followed by at most 63 letters, digits or '-', all lower-case"
        )
        self.alias = alias


class VersionInUse(StoreError):
    """A version cannot be removed while something points to it."""

    def __init__(self, version: int, use: str) -> None:
        super().__init__(f"version {version} is in use: {use}")
        self.version = version
        self.use = use


class ArchiveRefused(StoreError):
    """A file that was given as an exported version is not one, or not a sound one."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"archive: {fault}")
        self.fault = fault
