"""What every command's exit code means, and the one table from errors to codes."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from respsd import errors


class ExitCode(enum.IntEnum):
    """0 only when all is well."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """An argument, a request field or a setting holds a value that cannot be honoured."""
    UNREACHABLE = 3
    """No daemon answers, or it takes no requests."""
    NOT_FOUND = 4
    PRECONDITION = 5
    """Refused in the present state, or to this caller."""
    TIMED_OUT = 124
    INTERRUPTED = 130


OF_ERROR: Mapping[type[errors.RespsdError], ExitCode] = {
    errors.InvalidRequest: ExitCode.USAGE,
    errors.UnknownPolicy: ExitCode.NOT_FOUND,
    errors.UnknownModel: ExitCode.NOT_FOUND,
    errors.PolicyRefused: ExitCode.PRECONDITION,
    errors.ChangeRefused: ExitCode.PRECONDITION,
    errors.Overtaken: ExitCode.PRECONDITION,
    errors.ArchiveInvalid: ExitCode.USAGE,
    errors.TryLater: ExitCode.FAILED,
    errors.Overloaded: ExitCode.FAILED,
    errors.QueueTooSlow: ExitCode.FAILED,
    errors.OutOfMemory: ExitCode.FAILED,
    errors.Unauthenticated: ExitCode.PRECONDITION,
    errors.PermissionDenied: ExitCode.PRECONDITION,
    errors.EngineUnavailable: ExitCode.UNREACHABLE,
    errors.DeadlineExceeded: ExitCode.TIMED_OUT,
    errors.EngineFault: ExitCode.FAILED,
    errors.CheckpointError: ExitCode.FAILED,
    errors.DemoModelUnavailable: ExitCode.FAILED,
    errors.SettingsError: ExitCode.USAGE,
    errors.CannotListen: ExitCode.FAILED,
    errors.StorageError: ExitCode.FAILED,
    errors.DatabaseDamaged: ExitCode.FAILED,
    errors.UpdateFailed: ExitCode.FAILED,
    errors.LearningPaused: ExitCode.PRECONDITION,
    errors.CalibrationFailed: ExitCode.FAILED,
    errors.TrainingDataError: ExitCode.FAILED,
}

OF_STATUS: Mapping[str, ExitCode] = {
    "INVALID_ARGUMENT": ExitCode.USAGE,
    "NOT_FOUND": ExitCode.NOT_FOUND,
    "FAILED_PRECONDITION": ExitCode.PRECONDITION,
    "UNAUTHENTICATED": ExitCode.PRECONDITION,
    "PERMISSION_DENIED": ExitCode.PRECONDITION,
    "UNAVAILABLE": ExitCode.UNREACHABLE,
    "DEADLINE_EXCEEDED": ExitCode.TIMED_OUT,
}


def of_error(error: errors.RespsdError) -> ExitCode:
    """The exit code of a failure in this process."""
    return next((OF_ERROR[kind] for kind in type(error).__mro__ if kind in OF_ERROR), ExitCode.FAILED)


def of_status(name: str) -> ExitCode:
    """The exit code of a call that ended with the gRPC status of that name."""
    return OF_STATUS.get(name, ExitCode.FAILED)
