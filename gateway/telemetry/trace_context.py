"""The caller's trace context: the header field `traceparent` (W3C Trace Context, level 1).

`tracestate` and `baggage` are not read: their text is the caller's, and spans have no text of callers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

FIELD = b"traceparent"
# A version above 00 may append fields; ff is no version.
_VERSION_00 = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LATER = re.compile(rb"(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_NO_TRACE, _NO_SPAN = b"0" * 32, b"0" * 16


class CallerContext(msgspec.Struct, frozen=True):
    """The trace and the span of the caller's request. `sampled`: the caller may record its own spans."""

    trace_id: bytes  # 16
    span_id: bytes  # 8
    sampled: bool


def caller_context(headers: Iterable[tuple[bytes, bytes]]) -> CallerContext | None:
    """The context in the header fields of a request, whose names are in lower case; None without a valid one, and with
    several."""
    found = [value for name, value in headers if name == FIELD]
    return _parse(found[0].strip()) if len(found) == 1 else None


def _parse(value: bytes) -> CallerContext | None:
    match = _VERSION_00.fullmatch(value) or _LATER.fullmatch(value)
    if match is None:
        return None
    trace_id, span_id, flags = match.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return CallerContext(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()), bool(int(flags, 16) & 1))
