"""The cursor of a report's page as an opaque text. Clients send it back, so it is checked."""

from __future__ import annotations

import base64
import binascii

import msgspec

from billing.books.reports import ReportCursor
from gateway.errors import InvalidRequest

PREFIX = "page_"


def encode_cursor(place: ReportCursor) -> str:
    return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(token: str, start: int, step: int, groups: int) -> ReportCursor:
    """The cursor in a `page` parameter. `start` and `step` in microseconds, and the number of `groups`, are those of
    the request. Raises InvalidRequest for a cursor of another request."""
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
