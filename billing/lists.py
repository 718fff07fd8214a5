"""Searchable lists in pages, sorted by a column that the caller names.

A page begins behind the last row of the previous page, by that row's values and not by an offset: rows added meanwhile
move nothing. It must never know which table is listed.
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
    """The last row of a page: its value in the sorting column, and its name."""

    sort: str
    value: str | int
    unique: str | int


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`sort`: a column's name, with - before it for the highest first. `search`: a part of a name or an id; case does
    not count. `after`: the end of the previous page."""

    sort: str
    search: str | None = None
    after: ListCursor | None = None
    limit: int = 100


class ListPage(msgspec.Struct, Generic[Item], frozen=True):
    """A page, and the cursor of the next page; None at the end."""

    items: list[Item]
    next: ListCursor | None


@dataclass(frozen=True, slots=True)
class ListColumns:
    """`sorts`: by name, the expressions that a list may be sorted by, without nulls, of text or integers. `unique`
    orders equal values. `searched`: the columns that a search reads."""

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
    """The page of `query` that the list query selects. `name`: the value of `columns.unique` in an item. Raises
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
    """Raises InvalidValue for a cursor of another list."""
    assert asked.after is not None
    fits = asked.after.sort == asked.sort
    for value, column in ((asked.after.value, by), (asked.after.unique, unique)):
        fits = fits and type(value) is column.type.python_type
        fits = fits and (abs(value) <= INTEGER_MAX if isinstance(value, int) else "\0" not in value)
    if not fits:
        raise InvalidValue("it is no page of this list as it is sorted", "page")
