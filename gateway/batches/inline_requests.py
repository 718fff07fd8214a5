"""Splits the body of a new Message Batch, `{"requests": [...]}`, into the lines of an input file while it arrives."""

from __future__ import annotations

import re

import msgspec

from gateway import errors
from gateway.batches.validation import METHOD

ENDPOINT = "/v1/messages"
REQUESTS_MAX = 100_000
BODY_BYTES_MAX = 256 * 1024 * 1024
CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
HEAD_BYTES_MAX = 1024
FORMAT = 'The body must be {"requests": [{"custom_id": ..., "params": {...}}, ...]}, without further fields.'

_HEAD = re.compile(rb'\s*\{\s*"requests"\s*:\s*\[')
_SPACE = re.compile(rb"\s*")
_OUTSIDE = re.compile(rb'["{}\[\]]')  # the bytes that count outside a string, and inside one
_INSIDE = re.compile(rb'["\\]')


class InlineRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An element of `requests`. `params`: a body of /v1/messages."""

    custom_id: str
    params: msgspec.Raw


class InlineLine(msgspec.Struct, frozen=True):
    """The same as a line of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Params(msgspec.Struct, frozen=True):
    model: str


_read_request = msgspec.json.Decoder(InlineRequest).decode
_read_params = msgspec.json.Decoder(_Params).decode


class RequestSplitter:
    """Feed it the body's parts in order, then call `finish_body`. One request is in memory at once. It may be used in a
    thread, one call at a time."""

    def __init__(self, request_bytes_max: int) -> None:
        self._request_bytes_max = request_bytes_max
        self._rest = bytearray()  # bytes that are not split yet
        self._at = 0  # bytes of it that were scanned
        self._depth = 0  # of brackets in a request; 0: between two requests
        self._in_string = False
        self._expected = b""  # between two requests; b"": the list has not begun, or has ended
        self._has_ended = False
        self._is_closed = False  # the brace of the body has arrived
        self.requests = 0

    def split_part(self, data: bytes) -> bytes:
        """The lines of the requests that end in `data`. Raises InvalidRequest, RequestTooLarge."""
        self._rest += data
        if not self._expected and not self._has_ended and not self._read_head():
            return b""
        lines = []
        while not self._has_ended and (self._depth or self._begin_request()):
            if not self._find_end():
                break
            lines.append(self._line(bytes(self._rest[: self._at])))
            self._drop_scanned()
            self._expected = b",]"
        if self._has_ended:
            self._read_tail()
        return b"".join(lines)

    def finish_body(self) -> None:
        """Raises InvalidRequest for a body that has not ended, or that has no request."""
        if not self._is_closed:
            raise errors.InvalidRequest(FORMAT)
        if not self.requests:
            raise errors.InvalidRequest("'requests' has no request.", param="requests")

    def _read_head(self) -> bool:
        """Whether the list has begun."""
        if (head := _HEAD.match(self._rest)) is None:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise errors.InvalidRequest(FORMAT)
            return False
        self._at = head.end()
        self._drop_scanned()
        self._expected = b"{]"
        return True

    def _read_tail(self) -> None:
        """Read what has arrived after the list, and retain none of it. Raises InvalidRequest."""
        tail = bytes(self._rest.strip())
        self._rest.clear()
        if not tail:
            return
        if tail != b"}" or self._is_closed:
            raise errors.InvalidRequest(FORMAT)
        self._is_closed = True

    def _begin_request(self) -> bool:
        """Read up to the first bracket of the next request. False: it has not arrived, or the list has ended."""
        while True:
            space = _SPACE.match(self._rest)
            assert space is not None
            self._at = space.end()
            self._drop_scanned()
            if not self._rest:
                return False
            mark = bytes(self._rest[:1])
            if mark not in self._expected or not mark:
                raise errors.InvalidRequest(FORMAT)
            if mark == b"{":
                return True
            self._at = 1
            self._drop_scanned()
            if mark == b"]":
                self._has_ended = True
                return False
            self._expected = b"{"

    def _find_end(self) -> bool:
        """Scan up to the end of the request. False: it has not arrived."""
        rest = self._rest
        while True:
            found = (_INSIDE if self._in_string else _OUTSIDE).search(rest, self._at)
            if found is None:
                self._at = len(rest)
                break
            mark = rest[found.start()]
            if mark == ord("\\"):
                if found.start() + 1 >= len(rest):
                    self._at = found.start()
                    break
                self._at = found.start() + 2
                continue
            self._at = found.end()
            if mark == ord('"'):
                self._in_string = not self._in_string
            elif mark in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    return True
        if len(rest) > self._request_bytes_max:
            raise errors.RequestTooLarge(
                f"requests.{self.requests} is over the limit of {self._request_bytes_max} bytes.",
                param=f"requests.{self.requests}",
            )
        return False

    def _line(self, data: bytes) -> bytes:
        """The line of one request. Raises InvalidRequest, RequestTooLarge."""
        name = f"requests.{self.requests}"
        self.requests += 1
        if self.requests > REQUESTS_MAX:
            raise errors.RequestTooLarge(f"'requests' has over {REQUESTS_MAX} requests.", param="requests")
        try:
            request = _read_request(data)
            params = bytes(request.params)
            _read_params(params)
            if b"\n" in params or b"\r" in params:  # of a body that is indented
                params = msgspec.json.format(params, indent=-1)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.InvalidRequest(f"{name} is not valid: {error}.", param=name) from None
        if not CUSTOM_ID.fullmatch(request.custom_id):
            raise errors.InvalidRequest(
                f"{name}.custom_id must have 1 to 64 of the characters A-Z, a-z, 0-9, '_' and '-'.",
                param=f"{name}.custom_id",
            )
        return errors.encode(InlineLine(request.custom_id, METHOD, ENDPOINT, msgspec.Raw(params))) + b"\n"

    def _drop_scanned(self) -> None:
        del self._rest[: self._at]
        self._at = 0
