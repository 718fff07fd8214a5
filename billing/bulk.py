"""Many rows in one statement, on either database: PostgreSQL takes columns as arrays, SQLite takes executemany.

It is what keeps a group of hundreds of requests at a dozen statements. It knows no particular table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

Row = Sequence[Any]


class BulkInsert:
    """INSERT of `columns` (all that the database does not count by itself, unless named). With `on_conflict`, a row
    that is there already gets the new values of all other columns."""

    def __init__(
        self, table: sa.Table, columns: Iterable[str] | None = None, on_conflict: Sequence[str] | None = None
    ) -> None:
        self.columns = tuple(columns or (column.name for column in table.columns if column.autoincrement is not True))
        into = f"INSERT INTO {table.name} ({', '.join(self.columns)})"
        conflict = ""
        if on_conflict:
            new = ", ".join(f"{name} = excluded.{name}" for name in self.columns if name not in on_conflict)
            conflict = f" ON CONFLICT ({', '.join(on_conflict)}) DO UPDATE SET {new}"
        self._sqlite = f"{into} VALUES ({', '.join('?' for _ in self.columns)}){conflict}"
        self._postgres = f"{into} SELECT * FROM unnest({_arrays(table, self.columns)}){conflict}"

    def run(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        """`rows` hold their values in the order of `columns`. None of them: nothing happens."""
        _run(connection, self._sqlite, self._postgres, rows)


class BulkUpdate:
    """UPDATE of `columns` of the rows named by `key`. A row of values is the columns in order, then the key."""

    def __init__(self, table: sa.Table, columns: Sequence[str], key: str) -> None:
        names = (*columns, key)
        self._sqlite = f"UPDATE {table.name} SET {', '.join(f'{name} = ?' for name in columns)} WHERE {key} = ?"
        self._postgres = (
            f"UPDATE {table.name} SET {', '.join(f'{name} = given.{name}' for name in columns)} "
            f"FROM unnest({_arrays(table, names)}) AS given ({', '.join(names)}) WHERE {table.name}.{key} = given.{key}"
        )

    def run(self, connection: sa.Connection, rows: Sequence[Row]) -> None:
        _run(connection, self._sqlite, self._postgres, rows)


def _arrays(table: sa.Table, columns: Iterable[str]) -> str:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    return ", ".join(f"%s::{table.c[name].type.compile(dialect)}[]" for name in columns)


def _run(connection: sa.Connection, for_sqlite: str, for_postgres: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(for_sqlite, [tuple(row) for row in rows])
    else:
        connection.exec_driver_sql(for_postgres, tuple([list(column) for column in zip(*rows, strict=True)]))


class Strings(sa.types.TypeDecorator[list[str]]):
    """A list of strings as one parameter: an array, or JSON."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else postgresql.ARRAY(sa.Text()))

    def process_bind_param(self, value: list[str] | None, dialect: sa.Dialect) -> Any:
        return json.dumps(value) if dialect.name == "sqlite" else value


class among(FunctionElement[Any]):
    """`among(column, "names")`: the column is one of the list given as parameter `names`. One statement text for any
    length of list, so that it is prepared once."""

    # Not Boolean: on SQLite "= 1" would follow, and no index is used under a comparison of the comparison.
    type = sa.types.NullType()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[str], name: str) -> None:
        super().__init__(column, sa.bindparam(name, type_=Strings()))


@compiles(among, "sqlite")
def _among_sqlite(element: among, compiler: Any, **kwargs: Any) -> str:
    column, names = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({names}))"


@compiles(among, "postgresql")
def _among_postgres(element: among, compiler: Any, **kwargs: Any) -> str:
    column, names = (compiler.process(clause, **kwargs) for clause in element.clauses)
    return f"{column} = ANY({names})"
