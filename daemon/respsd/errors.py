"""Every failure that respsd names, one sentence each; context lives in attributes.

`service/status.py` maps each class to its gRPC status code, `cli/exit_codes.py` to an exit code. Code below the
service raises these and knows neither.
"""

from __future__ import annotations

_SHOWN = 200
"""Characters of a refused value, and of the field's name, that its message repeats."""


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class RespsdError(Exception):
    """Root of every error that respsd raises on purpose."""

    reason: str | None = None
    """Which limit of the daemon's capacity refused or ended the request, as metrics count it."""


class InvalidRequest(RespsdError):
    """A request field holds a value that cannot be honoured."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        field = _shortened(field)  # callers may name fields too, and the log repeats the name
        super().__init__(f"{field}: {_shortened(repr(value))} is not allowed; {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class UnknownPolicy(RespsdError):
    """A request or command names a policy version or alias that the store does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy version or alias {name!r}")
        self.name = name


class UnknownModel(RespsdError):
    """A request names a model, or a version of it, that this daemon does not serve."""

    def __init__(self, field: str, name: str, version: str, served: str) -> None:
        named = f"{name!r}, version {version!r}" if version else repr(name)
        super().__init__(f"{field}: there is no model {named}; served is {served}")
        self.field = field
        self.name = name


class PolicyRefused(RespsdError):
    """A stored policy version cannot serve: its files, its numbers or its schema are wrong."""

    def __init__(self, version: int, fault: str) -> None:
        super().__init__(f"policy version {version} is refused: {fault}")
        self.version = version
        self.fault = fault


class ChangeRefused(RespsdError):
    """A change of the policies is refused in their present state; another order of commands may be accepted."""


class Overtaken(ChangeRefused):
    """An alias no longer serves the version that a change was decided for; nothing is said of the one there now."""


class ArchiveInvalid(RespsdError):
    """A file given as an exported policy version is not one, or not a sound one."""


class TryLater(RespsdError):
    """The daemon has no room for a request now; the same one may be taken some time later."""

    def __init__(self, fault: str, retry_after_seconds: float = 1.0) -> None:
        super().__init__(f"{fault}; try again later")
        self.retry_after_seconds = retry_after_seconds


class Overloaded(TryLater):
    """A limit on the work that the daemon takes on at once is reached."""

    reason = "capacity"

    def __init__(
        self,
        what: str,
        value: int,
        limit: int,
        retry_after_seconds: float = 1.0,
        *,
        setting: str | None = None,
        reason: str | None = None,
    ) -> None:
        """:param setting: the one that sets the limit; `reason` as metrics count it."""
        set_by = f", set by {setting}" if setting else ""
        super().__init__(f"{what} is full: {value} of {limit}{set_by}", retry_after_seconds)
        self.what = what
        self.value = value
        self.limit = limit
        self.reason = reason or self.reason


class QueueTooSlow(TryLater):
    """A request waited too long for a place, or would by the rate at which requests start."""

    reason = "queue_time"


class OutOfMemory(TryLater):
    """A request's step needed more memory than was free; the request's own memory is free again."""

    reason = "memory"

    def __init__(self) -> None:
        super().__init__("the machine has too little free memory to go on with this request", 5.0)


class Unauthenticated(RespsdError):
    """A caller does not prove who they are, where the daemon asks for it."""


class PermissionDenied(RespsdError):
    """A caller's roles do not cover the call."""

    def __init__(self, caller: str, needed: str) -> None:
        super().__init__(f"{caller} may not do this; it needs one of the roles {needed}")
        self.caller = caller
        self.needed = needed


class EngineUnavailable(RespsdError):
    """The engine takes no request now: it is loading, draining or stopped."""

    reason = "unavailable"


class DeadlineExceeded(RespsdError):
    """The client's deadline passed before the request was finished."""

    reason = "deadline"


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


class CannotListen(RespsdError):
    """An address cannot be listened at as things are: another process has it, or the machine does not have it yet."""

    def __init__(self, setting: str, address: str, fault: str) -> None:
        super().__init__(f"{setting}: cannot listen at {address}: {fault}")
        self.setting = setting
        self.address = address
        self.fault = fault


class StorageError(RespsdError):
    """A database cannot be opened, migrated or written."""


class DatabaseDamaged(StorageError):
    """A database's file is no database, or a broken one."""


class LearningPaused(RespsdError):
    """No policy is trained now: learning is off, frozen, or waits for a database."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"learning is paused: {reason}")
        self.reason = reason


class CalibrationFailed(RespsdError):
    """The speed of this machine could not be measured."""


class UpdateFailed(RespsdError):
    """An update of the learner crashed, took too long, or could not be stored or published."""


class TrainingDataError(RespsdError):
    """A file that drafter training reads or writes cannot be used."""

    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault
