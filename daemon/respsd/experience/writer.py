"""Writes batches of requests to the database, one transaction each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import insert
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
from respsd.experience.database import OpenLog
from respsd.experience.models import RequestRow, TransitionRow
from respsd.experience.rows import Origin, Values, request_values, transition_values

_FAULTS_OF_ROWS = (DataError, IntegrityError, InterfaceError, NotSupportedError, ProgrammingError)


class InvalidRows(Exception):
    """The database is fine, and one of the rows cannot be written at any time."""


class Writer:
    """Owns the database connection; opens it when first needed, and again after it met a damaged file."""

    def __init__(self, open_log: Callable[[], OpenLog], origin: Origin) -> None:
        self._open_log = open_log
        self._origin = origin
        self._log: OpenLog | None = None
        self.moved_aside: Path | None = None
        """Where the last damaged log went."""

    def write(self, batch: Sequence[Entry]) -> None:
        """Write all of the batch or nothing.

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
                self.close()  # opening it again moves the file aside
            raise StorageError(str(fault.orig)) from fault
        except Exception as fault:  # a value that the driver cannot even bind
            raise InvalidRows(str(fault)) from fault

    def close(self) -> None:
        """Let go of the file; a later write opens it again."""
        if self._log is not None:
            self._log.engine.dispose()
            self._log = None

    def _opened(self) -> OpenLog:
        if self._log is None:
            try:
                self._log = self._open_log()
            except StorageError:
                raise
            except Exception as fault:
                raise StorageError(f"the experience log cannot be opened: {fault}") from fault
            self.moved_aside = self._log.moved_aside or self.moved_aside
        return self._log
