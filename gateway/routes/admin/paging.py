"""Shared by the lists of the admin API: their parameters, and the cursors of their pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from litestar.params import Parameter

from billing.lists import ListCursor, ListPage, ListQuery
from gateway.errors import InvalidRequest
from gateway.views.accounts import Item, Page, Source

PAGE_DEFAULT, PAGE_MAX = 100, 500
NUMBER_CHARS_MAX = 18  # any number of 18 digits fits a column of 64 bits
Limit = Annotated[int, Parameter(ge=1, le=PAGE_MAX)]
After = Annotated[str | None, Parameter(query="page", description="`next_page` of the previous page")]
TenantFilter = Annotated[str | None, Parameter(query="tenant", description="an id or a slug")]
Moment = Annotated[int | None, Parameter(ge=0, le=2**40, description="Unix seconds")]
Name = Annotated[str | None, Parameter(max_length=256)]
BatchLines = Literal["any", "none"]  # lines of batches, or all other requests
OF_BATCH: dict[str, bool] = {"any": True, "none": False}


Search = Annotated[str | None, Parameter(max_length=200, description="part of a name or an id; case does not count")]
PREFIX = "page_"
AnyCursor = TypeVar("AnyCursor", bound=msgspec.Struct)


def list_query(sort: str, search: str | None, after: str | None, limit: int) -> ListQuery:
    """The query of a list from its parameters. Raises InvalidRequest."""
    if search and "\0" in search:
        raise InvalidRequest("'search' has a NUL character.", param="search")
    return ListQuery(
        sort=sort, search=search or None, after=None if after is None else decode_cursor(after, ListCursor), limit=limit
    )


def list_page(found: ListPage[Source], view: Callable[[Source], Item]) -> Page[Item]:
    following = None if found.next is None else encode_cursor(found.next)
    return Page(data=[view(one) for one in found.items], has_more=following is not None, next_page=following)


def encode_cursor(cursor: msgspec.Struct) -> str:
    """A cursor as an opaque text for `page`."""
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def decode_cursor(token: str, kind: type[AnyCursor]) -> AnyCursor:
    """The cursor in a `page` parameter. Raises InvalidRequest."""
    try:
        word = token.removeprefix(PREFIX).encode()
        return msgspec.json.decode(base64.urlsafe_b64decode(word + b"=" * (-len(word) % 4)), type=kind)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise InvalidRequest(f"'page' is {token!r}, which is not a page of this list.", param="page") from error


class Identified(Protocol):
    @property
    def id(self) -> str: ...


WithId = TypeVar("WithId", bound=Identified)


def after_id(items: Sequence[WithId], after: str | None) -> Sequence[WithId]:
    """The items after the one with the id `after`. Raises InvalidRequest if the list has no such item."""
    if after is None:
        return items
    for index, item in enumerate(items):
        if item.id == after:
            return items[index + 1 :]
    raise InvalidRequest(f"'page' is {after!r}, which is not on this list.", param="page")


def decode_sequence(after: str | None) -> int | None:
    """The row number in a `page` parameter that holds a row number. Raises InvalidRequest."""
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) <= NUMBER_CHARS_MAX):
        raise InvalidRequest(f"'page' is {after!r}, which is not a page of this list.", param="page")
    return int(after)


def number_of(text: str) -> int:
    """The number of a row in a path. -1, which no row has: `text` is no number that the database can store."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX else -1
