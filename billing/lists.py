"""Searchable lists in pages, sorted by a column that the caller names.

A page begins behind the last row of the previous page, by that row's values and not by an offset: rows added meanwhile
shift no later page. It must never know which table is listed.
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
    """`sort`: a column's name; a leading - sorts in descending order. `search`: a part of a name or an id; case does
    not count. `after`: the cursor of the previous page, None for the first page."""

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


def select_page(
    connection: sa.Connection,
    query: sa.Select[Any],
    columns: ListColumns,
    list_query: ListQuery,
    make: Callable[[Any], Item],
    name: Callable[[Item], str | int],
) -> ListPage[Item]:
    """The page of `query` that the list query selects. `name`: the value of `columns.unique` in an item. Raises
    InvalidValue."""
    limit = min(list_query.limit, LIMIT_MAX)
    column, descending = list_query.sort.removeprefix("-"), list_query.sort.startswith("-")
    by = columns.sorts.get(column)
    if by is None:
        raise InvalidValue(f"{list_query.sort!r} is no sort column; they are {', '.join(columns.sorts)}", "sort")
    if list_query.search:
        query = query.where(sa.or_(*(one.icontains(list_query.search, autoescape=True) for one in columns.searched)))
    narrowed = query
    if list_query.after is not None:
        _check(list_query, by, columns.unique)
        row_key = sa.tuple_(by, columns.unique)
        after = list_query.after
        after_key = sa.tuple_(sa.literal(after.value, by.type), sa.literal(after.unique, columns.unique.type))
        narrowed = query.where(row_key < after_key if descending else row_key > after_key)
    order = [by.desc(), columns.unique.desc()] if descending else [by, columns.unique]
    rows = connection.execute(narrowed.order_by(*order).limit(limit + 1)).all()
    items = [make(row) for row in rows[:limit]]
    if len(rows) <= limit:
        return ListPage(items, None)
    last = name(items[-1])
    value = connection.execute(query.with_only_columns(by).where(columns.unique == last)).scalar_one()
    return ListPage(items, ListCursor(list_query.sort, value, last))


def _check(list_query: ListQuery, by: sa.ColumnElement[Any], unique: sa.ColumnElement[Any]) -> None:
    """Raises InvalidValue for a cursor of another list."""
    assert list_query.after is not None
    fits = list_query.after.sort == list_query.sort
    for value, column in ((list_query.after.value, by), (list_query.after.unique, unique)):
        fits = fits and type(value) is column.type.python_type
        fits = fits and (abs(value) <= INTEGER_MAX if isinstance(value, int) else "\0" not in value)
    if not fits:
        raise InvalidValue("the page cursor belongs to another list or another order", "page")
