"""Writes batches of requests to the database, one transaction each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog
from sqlalchemy import Engine, insert
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)

from policy_store.sqlite import is_corrupt
from respsd.errors import StorageError
from respsd.experience.backlog import Entry
from respsd.experience.database import FileId, OpenLog, set_aside
from respsd.experience.models import RequestRow, TransitionRow
from respsd.experience.rows import Origin, Values, request_values, transition_values

T = TypeVar("T")

log = structlog.get_logger(__name__)

_FAULTS_OF_ROWS = (DataError, IntegrityError, InterfaceError, NotSupportedError, ProgrammingError)


class InvalidRows(Exception):
    """The database is fine, and one of the rows cannot be written at any time."""


class Writer:
    """Owns the database connection; opens it when first needed, and again after it met a damaged file."""

    def __init__(self, open_log: Callable[[], OpenLog], origin: Origin) -> None:
        self._open_log = open_log
        self._origin = origin
        self._log: OpenLog | None = None
        self._damaged: tuple[Path, str] | None = None
        self.moved_aside: Path | None = None
        """Where the last damaged log went."""

    def write(self, batch: Sequence[Entry]) -> None:
        """Write all of the batch or nothing; an empty one opens the log.

        Raises StorageError (try again later) or InvalidRows (never try these again together).
        """
        engine = self._opened().engine
        try:
            with engine.begin() as connection:
                windows: list[Values] = []
                for entry in batch:
                    values = request_values(entry.request, self._origin)
                    key = connection.execute(insert(RequestRow).values(values)).inserted_primary_key
                    assert key is not None
                    windows += [transition_values(transition, key[0]) for transition in entry.transitions]
                if windows:
                    connection.execute(insert(TransitionRow), windows)
        except _FAULTS_OF_ROWS as fault:
            raise InvalidRows(str(fault.orig)) from fault
        except DBAPIError as fault:
            if is_corrupt(fault):
                self.condemn(str(fault.orig))
            raise StorageError(str(fault.orig)) from fault
        except Exception as fault:  # a value that the driver cannot even bind
            raise InvalidRows(str(fault)) from fault

    def lend(self, work: Callable[[Engine], T]) -> T:
        """Let `work` use the connection; raises what it raises, or StorageError."""
        return work(self._opened().engine)

    def condemn(self, fault: str, file: FileId | None = None) -> None:
        """The log is damaged: let go of it; the next write sets it aside and begins a new one.

        It does so whatever its own check says, which is too short to see all of a big file.

        :param file: where it was seen, if not by this writer; ignored where another file is open by now
        """
        if self._log is not None and file in (None, self._log.file_id):
            self._damaged = self._log.path, fault
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether the log is open; from any thread."""
        return self._log is not None

    def close(self) -> None:
        """Let go of the file; a later write opens it again."""
        if self._log is not None:
            self._log.engine.dispose()
            self._log = None

    def _opened(self) -> OpenLog:
        if self._log is not None and not self._log.is_in_place():
            log.error("experience_log_gone", path=str(self._log.path))
            self.close()
        if self._log is None:
            try:
                if self._damaged is not None:
                    self.moved_aside = set_aside(*self._damaged)
                    self._damaged = None
                self._log = self._open_log()
            except StorageError:
                raise
            except Exception as fault:
                raise StorageError(f"the experience log cannot be opened: {fault}") from fault
            self.moved_aside = self._log.moved_aside or self.moved_aside
        return self._log
