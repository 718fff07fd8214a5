"""Where a page of a report begins, as one opaque word: it travels through clients and is checked when it comes back."""

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
    """`start`, `step` (microseconds) and the number of groups of the request that it came with. Raises
    InvalidRequest for what is no page of it."""
    refused = InvalidRequest(f"'page' is {token!r}, which is no page of this request.", param="page")
    try:
        word = token.removeprefix(PREFIX).encode()
        place = msgspec.json.decode(base64.urlsafe_b64decode(word + b"=" * (-len(word) % 4)), type=ReportCursor)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise refused from error
    # A page's place names a value of each group, and the currency, or nothing.
    in_place = start - start % step <= place.bucket < 2**62 and place.bucket % step == 0
    odd = any("\0" in one for one in place.after)  # which PostgreSQL cannot even be asked for
    if odd or not in_place or len(place.after) not in (0, groups + 1):
        raise refused
    return place
