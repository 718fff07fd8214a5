"""The cursor of a report's page as an opaque text. Clients send it back, so it is checked."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection

import msgspec

from billing.accounts.tags import check_tag_name
from billing.books.reports import TAG_GROUP, TAG_GROUPS_MAX, ReportCursor
from billing.errors import InvalidValue
from gateway.errors import InvalidRequest

PREFIX = "page_"


def tag_filter(texts: Collection[str], field: str) -> tuple[tuple[str, str], ...]:
    """The names and values of texts NAME=VALUE; an empty value stands for usage without the tag. Raises
    InvalidRequest."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest(f"{field!r} has {text[:100]!r}, which is not NAME=VALUE.", param=field)
        found.append((_tag_name(name, field), value))
    return tuple(found)


def tag_groups(names: Collection[str]) -> list[str]:
    """The groups of a report for these names of tags. Raises InvalidRequest."""
    field = "group_by_tags"
    if len(names) > TAG_GROUPS_MAX:
        raise InvalidRequest(f"{field!r} has {len(names)} names; the limit is {TAG_GROUPS_MAX}.", param=field)
    return [TAG_GROUP + _tag_name(name, field) for name in dict.fromkeys(names)]


def _tag_name(name: str, field: str) -> str:
    try:
        check_tag_name(name, field)
    except InvalidValue as error:
        raise InvalidRequest(error.message, param=field) from None
    return name


def encode_cursor(place: ReportCursor) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(token: str, start: int, step: int, groups: int) -> ReportCursor:
    """The cursor in a `page` parameter. `start` and `step` in microseconds, and the number of `groups`, belong to the
    request. Raises InvalidRequest for a cursor of another request."""
    refused = InvalidRequest(f"'page' is {token!r}, which is not a page of this request.", param="page")
    try:
        word = token.removeprefix(PREFIX).encode()
        place = msgspec.json.decode(base64.urlsafe_b64decode(word + b"=" * (-len(word) % 4)), type=ReportCursor)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise refused from error
    # A cursor has a value of each group and the currency, or none of them.
    in_place = start - start % step <= place.bucket < 2**62 and place.bucket % step == 0
    odd = any("\0" in value for value in place.after)  # PostgreSQL refuses a query with a NUL
    if odd or not in_place or len(place.after) not in (0, groups + 1):
        raise refused
    return place
