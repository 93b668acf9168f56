"""SQLite as this project opens it: one writer in WAL mode, readers that leave no trace.

Writers take BEGIN IMMEDIATE: a transaction that reads first and then writes would fail at once with "database is
locked", whatever the timeout, when another connection wrote in between. Readers see one snapshot per transaction.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool, QueuePool

BUSY_TIMEOUT_SECONDS = 5.0
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class WalUnavailable(sqlite3.OperationalError):
    """The file system cannot hold a write-ahead log (a network share, for one)."""


def writer_engine(path: Path, *, synchronous: Literal["FULL", "NORMAL"]) -> Engine:
    """An engine whose every transaction may write; makes the file where there is none.

    Connecting raises WalUnavailable, or another sqlite3 error, inside SQLAlchemy's DBAPIError.
    """

    def connect() -> sqlite3.Connection:
        connection = _connect(f"file:{quote(str(path))}?mode=rwc")
        try:
            if connection.execute("PRAGMA page_count").fetchone() == (0,):
                # counts only before the first table, and before WAL mode writes the file's header
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _enter_wal(connection)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool, pool_size=1, max_overflow=4)
    _begin_with(engine, "BEGIN IMMEDIATE")
    return engine


def reader_engine(path: Path) -> Engine:
    """An engine that cannot write and creates nothing beside the file; every connection is closed after use."""

    def connect() -> sqlite3.Connection:
        # Without a write-ahead log nobody has the file open; a plain read-only connection would then make one and
        # leave it, an immutable one reads the file as it is.
        log = path.with_name(path.name + "-wal")
        mode = "mode=ro" if log.exists() else "mode=ro&immutable=1"
        connection = _connect(f"file:{quote(str(path))}?{mode}")
        connection.execute("PRAGMA query_only = ON")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    _begin_with(engine, "BEGIN")
    return engine


def is_corrupt(fault: BaseException) -> bool:
    """Whether an error says that the file is damaged or no database."""
    cause = getattr(fault, "orig", fault)
    code = getattr(cause, "sqlite_errorcode", None)
    return isinstance(code, int) and (code & 0xFF) in _CORRUPT


def _connect(uri: str) -> sqlite3.Connection:
    # isolation_level None leaves BEGIN to the engine's begin event, for reads and DDL too
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; of several processes that meet a new file at once, SQLite fails all but one without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as fault:
            if fault.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise WalUnavailable(f"journal mode is {mode}, the file system does not take WAL")


def _begin_with(engine: Engine, statement: str) -> None:
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(statement)

    event.listen(engine, "begin", begin)
