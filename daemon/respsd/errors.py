"""Every failure that respsd names, one sentence each; context lives in attributes.

`service/status.py` maps each class to its gRPC status code, `cli/exit_codes.py` to an exit code. Code below the
service raises these and knows neither.
"""

from __future__ import annotations


class RespsdError(Exception):
    """Root of every error that respsd raises on purpose."""


class InvalidRequest(RespsdError):
    """A request field holds a value that cannot be honoured."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field}: {value!r} is not allowed; {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class UnknownPolicy(RespsdError):
    """A request or command names a policy version or alias that the store does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy version or alias {name!r}")
        self.name = name


class PolicyRefused(RespsdError):
    """A stored policy version cannot serve: its files, its numbers or its schema are wrong."""

    def __init__(self, version: int, fault: str) -> None:
        super().__init__(f"policy version {version} is refused: {fault}")
        self.version = version
        self.fault = fault


class Overloaded(RespsdError):
    """The engine has no room for another request now."""

    def __init__(self, what: str, value: int, limit: int, retry_after_seconds: float = 1.0) -> None:
        super().__init__(f"{what} is full: {value} of {limit}; try again later")
        self.what = what
        self.value = value
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds


class EngineUnavailable(RespsdError):
    """The engine takes no request now: it is loading, draining or stopped."""


class DeadlineExceeded(RespsdError):
    """The client's deadline passed before the request was finished."""


class EngineFault(RespsdError):
    """The engine failed on a request for a reason that is not the client's."""


class CheckpointError(RespsdError):
    """A checkpoint's file is missing, malformed or contradicts itself or the target."""

    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault


class DemoModelUnavailable(RespsdError):
    """The demo model is not cached and neither the model hub nor the package index gave it."""


class SettingsError(RespsdError):
    """A setting is unknown, malformed or contradicts another."""


class StorageError(RespsdError):
    """A database cannot be opened, migrated or written."""


class TrainingDataError(RespsdError):
    """A file that drafter training reads or writes cannot be used."""

    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault
