"""Lists that people look through: searched, sorted by a column that they name, a page at a time.

A page begins behind the last row of the one before, by that row's values and not by counting: rows that are added
meanwhile move nothing. It must never know what is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import sqlalchemy as sa

from billing.errors import InvalidValue

LIMIT_MAX = 1000
INTEGER_MAX = 2**63 - 1

Item = TypeVar("Item")


class ListCursor(msgspec.Struct, frozen=True, array_like=True):
    """The last row of a page: what it has in the column that the list was sorted by, and its own name."""

    sort: str
    value: str | int
    unique: str | int


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`sort`: a column's name, with - before it for the highest first. `search`: a part of a name or an id, in whatever
    case. `after`: where the page before ended."""

    sort: str
    search: str | None = None
    after: ListCursor | None = None
    limit: int = 100


class ListPage(msgspec.Struct, Generic[Item], frozen=True):
    """A page, and where the next one begins; None at the end."""

    items: list[Item]
    next: ListCursor | None


@dataclass(frozen=True, slots=True)
class ListColumns:
    """What may be sorted by, by name: expressions without nulls, of text or integers. `unique` decides between equal
    ones. `searched`: where a search looks."""

    sorts: Mapping[str, sa.ColumnElement[Any]]
    unique: sa.ColumnElement[Any]
    searched: Sequence[sa.ColumnElement[str]]


def page(
    connection: sa.Connection,
    query: sa.Select[Any],
    columns: ListColumns,
    asked: ListQuery,
    make: Callable[[Any], Item],
    name: Callable[[Item], str | int],
) -> ListPage[Item]:
    """The rows of `query` that are asked for, in order. `name`: the value of `columns.unique` in an item. Raises
    InvalidValue."""
    limit = min(asked.limit, LIMIT_MAX)
    column, descending = asked.sort.removeprefix("-"), asked.sort.startswith("-")
    by = columns.sorts.get(column)
    if by is None:
        raise InvalidValue(f"{asked.sort!r} is no column to sort by; there are {', '.join(columns.sorts)}", "sort")
    if asked.search:
        query = query.where(sa.or_(*(one.icontains(asked.search, autoescape=True) for one in columns.searched)))
    narrowed = query
    if asked.after is not None:
        _check(asked, by, columns.unique)
        here = sa.tuple_(by, columns.unique)
        place = sa.tuple_(sa.literal(asked.after.value, by.type), sa.literal(asked.after.unique, columns.unique.type))
        narrowed = query.where(here < place if descending else here > place)
    order = [by.desc(), columns.unique.desc()] if descending else [by, columns.unique]
    rows = connection.execute(narrowed.order_by(*order).limit(limit + 1)).all()
    items = [make(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return ListPage(items, None)
    last = name(items[-1])
    value = connection.execute(query.with_only_columns(by).where(columns.unique == last)).scalar_one()
    return ListPage(items, ListCursor(asked.sort, value, last))


def _check(asked: ListQuery, by: sa.ColumnElement[Any], unique: sa.ColumnElement[Any]) -> None:
    """Raises InvalidValue for a place of another list."""
    assert asked.after is not None
    fits = asked.after.sort == asked.sort
    for value, column in ((asked.after.value, by), (asked.after.unique, unique)):
        fits = fits and type(value) is column.type.python_type
        fits = fits and (abs(value) <= INTEGER_MAX if isinstance(value, int) else "\0" not in value)
    if not fits:
        raise InvalidValue("it is no page of this list as it is sorted", "page")
