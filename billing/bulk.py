"""Statements over many rows for the ledger, on either database: PostgreSQL gets columns as arrays, SQLite lists of
values. A group of hundreds of requests needs a dozen statements.

Per statement SQLAlchemy takes several times as long as SQLite, which runs in this process. So statements for SQLite are
passed to the driver directly, inside SQLAlchemy's transaction. The module knows no particular table.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

Row = Sequence[Any]
# Rows per SQLite statement: a few fixed sizes, so that each statement is prepared once. `executemany` would release the
# interpreter's lock for every row, and wait for the event loop's thread to acquire it again.
SQLITE_ROWS = (64, 16, 4, 1)


class BulkInsert:
    """INSERT of `columns` (by default all except the autoincrement column). With `on_conflict`, an existing
    row gets the new values of all other columns; with `keep`, it does not change."""

    def __init__(
        self,
        table: sa.Table,
        columns: Iterable[str] | None = None,
        on_conflict: Sequence[str] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.columns = tuple(columns or (column.name for column in table.columns if column.autoincrement is not True))
        into = f"INSERT INTO {table.name} ({', '.join(self.columns)})"
        conflict = " ON CONFLICT DO NOTHING" if keep else ""
        if on_conflict:
            new = ", ".join(f"{name} = excluded.{name}" for name in self.columns if name not in on_conflict)
            conflict = f" ON CONFLICT ({', '.join(on_conflict)}) DO UPDATE SET {new}"
        values = f"({', '.join('?' for _ in self.columns)})"
        self._sqlite = {rows: f"{into} VALUES {', '.join([values] * rows)}{conflict}" for rows in SQLITE_ROWS}
        self._postgres = f"{into} SELECT * FROM unnest({_arrays(table, self.columns)}){conflict}"

    def run(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """Insert `rows`, each with its values in the order of `columns`. Without rows it runs no statement."""
        _run(connection, self._sqlite, self._postgres, rows)


class BulkUpdate:
    """UPDATE of `columns` of the rows named by `key`. A row of values is the columns in order, then the key."""

    def __init__(self, table: sa.Table, columns: Sequence[str], key: str) -> None:
        names = (*columns, key)
        values = f"({', '.join('?' for _ in names)})"
        new = ", ".join(f"{name} = given.column{number}" for number, name in enumerate(columns, 1))
        self._sqlite = {
            rows: f"UPDATE {table.name} SET {new} FROM (VALUES {', '.join([values] * rows)}) AS given "
            f"WHERE {table.name}.{key} = given.column{len(names)}"
            for rows in SQLITE_ROWS
        }
        # One row needs no VALUES table.
        self._sqlite[1] = f"UPDATE {table.name} SET {', '.join(f'{name} = ?' for name in columns)} WHERE {key} = ?"
        self._postgres = (
            f"UPDATE {table.name} SET {', '.join(f'{name} = given.{name}' for name in columns)} "
            f"FROM unnest({_arrays(table, names)}) AS given ({', '.join(names)}) WHERE {table.name}.{key} = given.{key}"
        )

    def run(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        _run(connection, self._sqlite, self._postgres, rows)


def _arrays(table: sa.Table, columns: Iterable[str]) -> str:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return ", ".join(f"%s::{table.c[name].type.compile(dialect)}[]" for name in columns)


def _run(connection: sa.Connection, for_sqlite: Mapping[int, str], for_postgres: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        driver, at = _driver(connection), 0
        for size in SQLITE_ROWS:
            while len(rows) - at >= size:
                driver.execute(for_sqlite[size], [value for row in rows[at : at + size] for value in row])
                at += size
    else:
        connection.exec_driver_sql(for_postgres, tuple([list(column) for column in zip(*rows, strict=True)]))


def _driver(connection: sa.Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class Query:
    """SELECT of columns that both drivers return unchanged: text and integers. A boolean may be 0 or 1."""

    def __init__(self, select: sa.Select[Any]) -> None:
        self._select = select
        compiled = select.compile(dialect=sqlite.dialect(paramstyle="named"))
        self._sqlite = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def rows(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """`parameters` by name; the parameters of `among` are lists."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._select, dict(parameters)).all()
        given = {name: json.dumps(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return _driver(connection).execute(self._sqlite, self._constants | given).fetchall()


class among(FunctionElement[Any]):
    """`among(column, "names")`: the column is in the list of the parameter `names`, an array for PostgreSQL and JSON
    for SQLite. The statement's text is the same for each length, so that it is prepared once."""

    # Not Boolean: SQLAlchemy would add "= 1" for SQLite, which then uses no index.
    type = sa.types.NullType()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[Any], name: str) -> None:
        super().__init__(column, sa.bindparam(name, type_=postgresql.ARRAY(column.type)))


class among_pairs(FunctionElement[Any]):
    """`among_pairs(one, other, "pairs")`: the two texts are a pair in the parameter `pairs`, a JSON array of arrays of
    two, for either database."""

    type = sa.types.NullType()
    inherit_cache = True

    def __init__(self, one: sa.ColumnElement[Any], other: sa.ColumnElement[Any], name: str) -> None:
        super().__init__(one, other, sa.bindparam(name, type_=sa.String))


@compiles(among_pairs, "sqlite")
def _pairs_sqlite(element: among_pairs, compiler: Any, **kwargs: Any) -> str:
    one, other, pairs = (compiler.process(clause, **kwargs) for clause in element.clauses)
    given = f"SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each({pairs})"
    return f"({one}, {other}) IN ({given})"


@compiles(among_pairs, "postgresql")
def _pairs_postgres(element: among_pairs, compiler: Any, **kwargs: Any) -> str:
    one, other, pairs = (compiler.process(clause, **kwargs) for clause in element.clauses)
    given = f"SELECT pair ->> 0, pair ->> 1 FROM json_array_elements(CAST({pairs} AS json)) AS given (pair)"
    return f"({one}, {other}) IN ({given})"


@compiles(among, "sqlite")
def _among_sqlite(element: among, compiler: Any, **kwargs: Any) -> str:
    column, names = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({names}))"


@compiles(among, "postgresql")
def _among_postgres(element: among, compiler: Any, **kwargs: Any) -> str:
    column, names = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"{column} = ANY({names})"
