"""Copies of a whole database from one view of it, and their way back: PostgreSQL by pg_dump and pg_restore, SQLite by
its backup API.

A dump is taken beside queries of the same snapshot, so the queries read exactly the rows of the dump.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import sqlalchemy as sa

from gateway.config.settings import safe_url

SQLITE_PAGES = 4096  # copied at once
CONNECT_TIMEOUT_S = 5
PARALLEL_MAX = 4  # processes of pg_restore
STDERR_CHARS_MAX = 300


class ToolFailed(Exception):
    """pg_dump or pg_restore is missing or failed; the message says what to do, or the tool's own last line."""


@contextlib.contextmanager
def one_view(url: str) -> Iterator[sa.Connection]:
    """A connection that sees one unchanging state of the database, for as long as a dump takes."""
    target = sa.make_url(url)
    is_sqlite = target.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {} if is_sqlite else {"connect_timeout": CONNECT_TIMEOUT_S}
    engine = sa.create_engine(target, poolclass=sa.pool.NullPool, connect_args=arguments)
    if is_sqlite:
        sa.event.listen(engine, "connect", _without_driver_transactions)
    else:
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            if is_sqlite:
                connection.exec_driver_sql("BEGIN")
                # The view begins with the first read.
                connection.exec_driver_sql("SELECT count(*) FROM sqlite_master")
            else:
                connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
            yield connection
    finally:
        engine.dispose()


def copy_sqlite(connection: sa.Connection, target: Path) -> None:
    """Copy the SQLite database of `one_view` to the new file `target`. Writers do not wait for it."""
    source = cast(sqlite3.Connection, connection.connection.driver_connection)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    copy = sqlite3.connect(target)
    try:
        # With the open read transaction every step reads one snapshot: without it, a writer would restart the copy.
        source.backup(copy, pages=SQLITE_PAGES)
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        copy.close()


@contextlib.contextmanager
def dump_postgres(connection: sa.Connection, url: str) -> Iterator[IO[bytes]]:
    """The output of pg_dump in the custom format, in the view of `connection`. Raises ToolFailed when it is left."""
    program = tool("pg_dump", connection)
    snapshot = connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one()
    argv = [program, "--format=custom", "--no-owner", "--no-privileges", "--lock-wait-timeout=60s"]
    argv += [f"--snapshot={snapshot}", f"--dbname={_public_url(url)}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environ(url)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise
        errors = process.stderr.read()
    if process.returncode:
        _failed("pg_dump", errors)


def restore_postgres(url: str, dump: Path, sections: Sequence[str], *, parallel: bool = False) -> None:
    """Run pg_restore for these sections of the dump (pre-data, data, post-data). Raises ToolFailed."""
    argv = [tool("pg_restore"), "--no-owner", "--no-privileges", "--exit-on-error", f"--dbname={_public_url(url)}"]
    argv += [f"--section={section}" for section in sections]
    argv += [f"--jobs={min(PARALLEL_MAX, os.cpu_count() or 1)}"] if parallel else ["--single-transaction"]
    done = subprocess.run([*argv, str(dump)], capture_output=True, env=_environ(url), check=False)
    if done.returncode:
        _failed("pg_restore", done.stderr)


def tool(name: str, connection: sa.Connection | None = None) -> str:
    """The path of a PostgreSQL program. Raises ToolFailed naming what to install."""
    if (found := shutil.which(name)) is not None:
        return found
    version = (
        ""
        if connection is None
        else f" {int(connection.exec_driver_sql('SHOW server_version_num').scalar_one()) // 10000}"
    )
    raise ToolFailed(
        f"{name} is not installed: install the PostgreSQL{version} client on this host, of the server's version or a "
        "newer one (Debian: postgresql-client, Fedora: postgresql, macOS: libpq)"
    )


def _without_driver_transactions(dbapi_connection: Any, _record: object) -> None:
    dbapi_connection.isolation_level = None


def _public_url(url: str) -> str:
    """The URL in libpq's form, without the password: other users of the host can read command lines."""
    target = sa.make_url(url).set(drivername="postgresql")
    query = {name: value for name, value in target.query.items() if name != "password"}
    return sa.URL.create(
        "postgresql", target.username, None, target.host, target.port, target.database, query
    ).render_as_string(hide_password=False)


def _environ(url: str) -> dict[str, str]:
    password = sa.make_url(url).password
    own = {} if password is None else {"PGPASSWORD": str(password)}
    return {**os.environ, **own, "PGAPPNAME": "laneway-backup", "LC_ALL": "C"}


def _failed(name: str, errors: bytes) -> NoReturn:
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    first = next((line for line in lines if "error:" in line), lines[-1] if lines else "it printed no reason")
    raise ToolFailed(f"{name} failed: {safe_url(first)[:STDERR_CHARS_MAX]}")
