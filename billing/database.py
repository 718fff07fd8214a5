"""Access to the SQL database: functions that take a connection run in threads, each in a separate transaction.

SQLite: WAL, one writer thread, `BEGIN IMMEDIATE`. PostgreSQL: psycopg, a bounded pool. It knows no table.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

T = TypeVar("T")

WITHOUT_TRANSACTION = "laneway_without_transaction"  # option of an SQLite connection, see `Database.maintain`
READERS = 4
REPORTERS = 2  # threads for long reports, separate from the threads for short look-ups
WRITERS = 3  # the writer thread, the background writer's, and a command's thread in the same process
CACHE_KIB = 16 * 1024  # page cache of each SQLite connection
BUSY_TIMEOUT_S = 10  # how long SQLite waits for a write of another process, for instance of the command line
CONNECT_TIMEOUT_S = 5
POOL_TIMEOUT_S = 10
SILENCE_TIMEOUT_S = 10  # after this time without a TCP acknowledgement, PostgreSQL's host counts as unavailable
LOCK_TIMEOUT_S = 10
# A process that stalls in the middle of a transaction must not hold its locks any longer.
IDLE_IN_TRANSACTION_TIMEOUT_S = 10
# SQLSTATEs for missing rights or tables. As with psycopg's InternalError (a read-only standby, damaged data), the fault
# is the server's and not the statement's, so the statement may be repeated.
CANNOT_SERVE = ("42501", "42P01")
# SQLite's errors for a wrong row or statement. All other errors concern the database file, which is locked, full,
# missing or damaged (a plain DatabaseError).
OUR_MISTAKE = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.NotSupportedError)
# The row is wrong: a retry would fail again.
ROW_REFUSED = (exc.DataError, exc.IntegrityError, sqlite3.DataError, sqlite3.IntegrityError)


# Why a write is refused until a person repairs the cause, in words that anyone may read: by SQLSTATE, and by a part of
# SQLite's message.
WRITE_FAULTS = {
    "25006": "the database is read-only",
    "42501": "the database refuses the gateway's rights",
    "53100": "the disk of the database is full",
    "readonly database": "the database is read-only",
    "unable to open database file": "the file or the folder of the database cannot be written",
    "disk is full": "the disk of the database is full",
    "disk I/O error": "the disk of the database cannot be written",
}


class DatabaseUnavailable(Exception):
    """The database cannot be reached, is locked, refuses to write or did not finish. A commit in progress may have
    taken place."""

    @property
    def write_fault(self) -> str:
        """One of WRITE_FAULTS, or "": the cause is another one."""
        cause = self.__cause__
        error = cause.orig if isinstance(cause, exc.DBAPIError) else cause
        state = getattr(error, "sqlstate", None)
        if state is not None:
            return WRITE_FAULTS.get(state, "")
        return next((fault for part, fault in WRITE_FAULTS.items() if part in str(error)), "")


class Database:
    """A pool of connections to `url`: `sqlite:///path` or `postgresql+psycopg://…`. Raises ValueError on others."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        if self.is_sqlite:
            make = _sqlite_engine
        elif self.url.drivername == "postgresql+psycopg":
            make = _postgres_engine
        else:
            raise ValueError(f"a database URL must begin with sqlite:/// or postgresql+psycopg://, not {url!r}")
        self._write_engine = make(self.url, True)
        self._read_engine = make(self.url, False)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="database-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="database-reader")
        self._reporters = ThreadPoolExecutor(REPORTERS, thread_name_prefix="database-report")
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="database-keeper")
        self._administering = asyncio.Lock()
        # SQLite's driver waits for its lock by polling at growing intervals, up to 100 ms; the threads of this process
        # wait for each other here instead.
        self._turn = threading.Lock() if self.is_sqlite else None
        self.write_fault = ""  # of the last write, one of WRITE_FAULTS; "": it was committed, or failed otherwise

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def sqlite_path(self) -> Path | None:
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    async def write(self, function: Callable[[sa.Connection], T]) -> T:
        """Run `function(connection)` in the one writer thread and commit; roll back if it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self.write_sync, function)

    async def administer(self, function: Callable[[sa.Connection], T]) -> T:
        """`write` for administrative writes. At most one of them is in the writer thread's queue, so that the ledger
        waits for at most one."""
        async with self._administering:
            return await self.write(function)

    async def read(self, function: Callable[[sa.Connection], T]) -> T:
        """Run `function(connection)` in a reader thread, on one unchanging view of the data; writing fails."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self.read_sync, function)

    async def report(self, function: Callable[[sa.Connection], T]) -> T:
        """`read` for long queries, in separate threads."""
        return await asyncio.get_running_loop().run_in_executor(self._reporters, self.read_sync, function)

    async def write_in_background(self, function: Callable[[sa.Connection], T]) -> T:
        """`write` for long writes without a waiting request, in a thread separate from the ledger's. SQLite has one
        writer at a time, so on SQLite the ledger waits for this write, which must be short."""
        return await asyncio.get_running_loop().run_in_executor(self._keeper, self.write_sync, function)

    async def maintain(self, function: Callable[[sa.Connection], T]) -> T:
        """Run `function(connection)` without a transaction, in the thread of `write_in_background`: each statement
        commits by itself, and statements such as VACUUM may run."""
        return await asyncio.get_running_loop().run_in_executor(self._keeper, self.maintain_sync, function)

    def maintain_sync(self, function: Callable[[sa.Connection], T]) -> T:
        # SQLite's driver is in this mode already, and SQLAlchemy would change it for later users of the connection.
        options = {WITHOUT_TRANSACTION: True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        with _translated(), self._write_engine.connect().execution_options(**options) as connection:
            return function(connection)

    def write_sync(self, function: Callable[[sa.Connection], T]) -> T:
        try:
            with _translated(), self._sqlite_turn(), self._write_engine.begin() as connection:
                result = function(connection)
        except DatabaseUnavailable as error:
            self.write_fault = error.write_fault
            raise
        self.write_fault = ""
        return result

    @contextmanager
    def _sqlite_turn(self) -> Iterator[None]:
        """On SQLite, one thread of this process writes at a time. Raises DatabaseUnavailable."""
        if self._turn is None:
            yield
            return
        if not self._turn.acquire(timeout=BUSY_TIMEOUT_S):
            raise DatabaseUnavailable("database is locked")
        try:
            yield
        finally:
            self._turn.release()

    def read_sync(self, function: Callable[[sa.Connection], T]) -> T:
        with _translated(), self._read_engine.connect() as connection:
            return function(connection)

    def close(self) -> None:
        """Wait for running transactions, then close every connection."""
        self._writer.shutdown()
        self._readers.shutdown()
        self._reporters.shutdown()
        self._keeper.shutdown()
        self._write_engine.dispose()
        self._read_engine.dispose()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, sqlite3.InterfaceError) as error:  # from bulk.py's direct statements
        if isinstance(error, OUR_MISTAKE):
            raise
        raise DatabaseUnavailable(str(error)) from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        if isinstance(error, exc.DBAPIError) and _is_overflow(error):
            raise
        raise DatabaseUnavailable(str(error.__cause__ or error).strip()) from error
    except exc.DBAPIError as error:
        if error.connection_invalidated or _cannot_serve(error):
            raise DatabaseUnavailable(str(error.orig).strip()) from error
        raise


def _is_overflow(error: exc.DBAPIError) -> bool:
    """Whether a sum exceeded 64 bits in SQLite, which raises the same class as for a lock (PostgreSQL: DataError)."""
    return isinstance(error.orig, sqlite3.OperationalError) and str(error.orig) == "integer overflow"


def _cannot_serve(error: exc.DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.DatabaseError):
        return not isinstance(error.orig, OUR_MISTAKE)
    return isinstance(error, exc.InternalError) or getattr(error.orig, "sqlstate", None) in CANNOT_SERVE


def _sqlite_engine(url: sa.URL, writes: bool) -> sa.Engine:
    if not url.database or url.database == ":memory:":
        raise ValueError("an SQLite database in memory cannot be shared between threads: name a file")
    engine = sa.create_engine(
        url,
        connect_args={"timeout": BUSY_TIMEOUT_S},
        pool_size=WRITERS if writes else READERS + REPORTERS,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
    )

    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = None  # the driver must not begin a transaction: `begin_transaction` does
        # The statement journal and the page cache are in memory, which saves system calls.
        pragmas = ["journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "temp_store = MEMORY"]
        pragmas.append(f"cache_size = -{CACHE_KIB}")
        for pragma in pragmas if writes else [*pragmas, "query_only = ON"]:
            dbapi_connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: sa.Connection) -> None:
        if connection.get_execution_options().get(WITHOUT_TRANSACTION):
            return
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres_engine(url: sa.URL, writes: bool) -> sa.Engine:
    settings = {
        "lock_timeout": f"{LOCK_TIMEOUT_S}s",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_TIMEOUT_S}s",
    }
    if not writes:
        # Without JIT: compiling a query takes longer than it saves, even over ten million rows.
        settings["jit"] = "off"
        # All statements of one read see the same snapshot, as in SQLite.
        settings |= {"default_transaction_isolation": r"repeatable\ read", "default_transaction_read_only": "on"}
    return sa.create_engine(
        url,
        connect_args={
            "application_name": "laneway",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": SILENCE_TIMEOUT_S * 1000,
            "keepalives_idle": SILENCE_TIMEOUT_S,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        },
        pool_size=WRITERS if writes else READERS + REPORTERS,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        pool_pre_ping=True,
    )
