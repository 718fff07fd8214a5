"""Reads a multipart form and writes its files while they arrive: bounded in bytes, time and memory.

The caller lists the accepted names and opens what each file is written to; the files' purpose is not known here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from litestar import Request
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway import errors
from gateway.http.exchange import check_encoding

PARTS_MAX = 64
FIELD_BYTES_MAX = 16 * 1024
BOUNDARY_CHARS_MAX = 200
# The minimal mean rate, counted after the first `idle_s`: a slower client would occupy one of the concurrent uploads.
BYTES_PER_S_MIN = 64 * 1024
# Bytes of a file that are buffered before a thread writes them.
BLOCK_BYTES = 1024 * 1024

Fields = Mapping[str, tuple[str, ...]]


class FormFile(Protocol):
    """The destination of one file of a form."""

    async def write(self, data: bytes) -> None: ...

    async def finish_file(self) -> None:
        """The file is complete."""

    def close(self) -> None:
        """Idempotent; an unfinished file is abandoned."""


# Called with the name in `files` of a file that begins, and the client's name of it, in a thread.
OpenFile = Callable[[str, str], FormFile]


class Form:
    """One form, read once. `files`: names of the required files. `fields`: names of the optional texts. A file is
    recognised by its file name or by its field's name."""

    def __init__(self, open_file: OpenFile, files: Collection[str], fields: Collection[str]) -> None:
        self._open_file = open_file
        self._expected = files
        self._names = fields
        self._files: set[str] = set()
        self._fields: dict[str, list[bytes]] = {}
        self._parts = 0
        self._file: FormFile | None = None
        self._text: list[bytes] | None = None
        self._text_bytes = 0
        self._name = ""

    async def read(
        self, request: Request[Any, Any, Any], bytes_max: int, idle_s: float, on_bytes: Callable[[int], Awaitable[None]]
    ) -> Fields:
        """Write the files and return the texts. `on_bytes` is called with the bytes of each piece, a number, before the
        piece is written. `bytes_max`: of the whole body. `idle_s`: seconds without a byte before 408. Raises
        InvalidRequest, RequestTooLarge, UnsupportedEncoding, OtherStatus, OSError, and what the files raise."""
        parser = _parser(request, bytes_max)
        try:
            async for body in body_parts(request, bytes_max, idle_s):
                await on_bytes(len(body))
                if body:
                    await self._feed_parser(parser, body)
            parser.close()
            return self._finish_form()
        except (MultipartError, UnicodeDecodeError) as error:
            raise errors.InvalidRequest(f"The body is not a multipart form: {error}") from error
        finally:
            if self._file is not None:
                self._file.close()

    def text_of(self, name: str) -> str | None:
        """The first text of this name that has arrived."""
        values = self._fields.get(name)
        return None if values is None else values[0].decode()

    async def _feed_parser(self, parser: PushMultipartParser, body: bytes) -> None:
        for event in parser.parse(body):
            if isinstance(event, MultipartSegment):
                await asyncio.to_thread(self._begin_part, event)
            elif event:
                await self._data(bytes(event))
            else:
                await self._end_part()

    def _begin_part(self, segment: MultipartSegment) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise errors.InvalidRequest(f"The form has more than {PARTS_MAX} parts.")
        name = self._file_name(segment)
        if name is None:
            self._name = segment.name or ""
            if self._name not in self._names:
                raise errors.InvalidRequest(
                    f"The form has no field {self._name[:64]!r}; it takes {', '.join(sorted(self._names))}.",
                    param=self._name[:64],
                )
            self._text, self._text_bytes = [], 0
            return
        if name in self._files:
            raise errors.InvalidRequest(f"{name} is in the form twice.", param=name)
        self._files.add(name)
        self._file = self._open_file(name, segment.filename or "")

    def _file_name(self, segment: MultipartSegment) -> str | None:
        """The name in `files` of a part that is a file; None: a text. The client's name is never used as a path."""
        filename, name = segment.filename, segment.name or ""
        if filename is None:
            return name if name in self._expected else None
        shown = filename[:64]
        if any(mark in filename for mark in ("/", "\\", "\0")) or filename in ("..", "."):
            raise errors.InvalidRequest(f"The file name {shown!r} is a path; send a plain name.", param=name[:64])
        for candidate in (filename, name):
            if candidate in self._expected:
                return candidate
        raise errors.InvalidRequest(
            f"The file {shown!r} is not expected; the form has exactly {' and '.join(self._expected)}.", param=name[:64]
        )

    async def _data(self, data: bytes) -> None:
        if self._file is not None:
            await self._file.write(data)
            return
        assert self._text is not None, "data belongs to a part"
        self._text_bytes += len(data)
        if self._text_bytes > FIELD_BYTES_MAX:
            raise errors.InvalidRequest(f"{self._name!r} is over {FIELD_BYTES_MAX} bytes.", param=self._name)
        self._text.append(data)

    async def _end_part(self) -> None:
        if self._file is not None:
            await self._file.finish_file()
            self._file = None
        elif self._text is not None:
            self._fields.setdefault(self._name, []).append(b"".join(self._text))
            self._text = None

    def _finish_form(self) -> Fields:
        """Check that each required file arrived, and return the texts."""
        for name in self._expected:
            if name not in self._files:
                raise errors.InvalidRequest(f"The form lacks the file {name}.", param=name)
        return {name: tuple(value.decode() for value in values) for name, values in self._fields.items()}


async def body_parts(request: Request[Any, Any, Any], bytes_max: int, idle_s: float) -> AsyncIterator[bytes]:
    """The parts of the body as they arrive. The body is never whole in memory. Limits and errors: `Form.read`."""
    received, begun_at, more = 0, time.monotonic(), True
    while more:
        body, more = await _next(request, idle_s)
        received += len(body)
        if received > bytes_max:
            raise errors.RequestTooLarge(f"The upload is over the limit of {bytes_max} bytes.")
        if more:
            _check_rate(received, time.monotonic() - begun_at - idle_s)
        yield body


def files_in(directory: Path, limits: Mapping[str, int]) -> OpenFile:
    """Write the files into a directory under their names in `limits`, which has the maximal bytes of each."""
    return lambda name, _: _DiskFile(directory / name, limits[name])


class _DiskFile:
    """One file that is written in blocks, by threads."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._name = path.name
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._out: BinaryIO = path.open("xb", buffering=0)

    async def write(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._bytes_max:
            raise errors.RequestTooLarge(f"{self._name} is over the limit of {self._bytes_max} bytes.")
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= BLOCK_BYTES:
            await asyncio.to_thread(self._flush)

    async def finish_file(self) -> None:
        await asyncio.to_thread(self._flush)
        self.close()

    def close(self) -> None:
        self._out.close()

    def _flush(self) -> None:
        rest = memoryview(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        while rest:
            rest = rest[self._out.write(rest) :]


def _parser(request: Request[Any, Any, Any], bytes_max: int) -> PushMultipartParser:
    """A parser for the request's boundary. Raises InvalidRequest, RequestTooLarge, UnsupportedEncoding."""
    check_encoding(request)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not 1 <= len(boundary) <= BOUNDARY_CHARS_MAX:
        raise errors.InvalidRequest("Send multipart/form-data, with its boundary in the Content-Type header.")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length) > bytes_max:
        raise errors.RequestTooLarge(f"The upload is over the limit of {bytes_max} bytes.")
    try:
        return PushMultipartParser(boundary, strict=True)
    except (MultipartError, UnicodeError) as error:
        raise errors.InvalidRequest(f"The boundary cannot be used: {error}") from error


def _check_rate(received: int, for_s: float) -> None:
    """Raises OtherStatus (408) if fewer than BYTES_PER_S_MIN bytes a second arrived."""
    if received < for_s * BYTES_PER_S_MIN:
        raise errors.OtherStatus(
            408, f"The upload is slower than the limit of {BYTES_PER_S_MIN} bytes a second: {received} bytes arrived."
        )


async def _next(request: Request[Any, Any, Any], idle_s: float) -> tuple[bytes, bool]:
    """The next bytes of the body, and whether more follow. Raises OtherStatus (408, STATUS_CLIENT_LEFT)."""
    try:
        async with asyncio.timeout(idle_s):
            message = await request.receive()
    except TimeoutError:
        raise errors.OtherStatus(408, f"No byte of the upload arrived for {idle_s:g} s.") from None
    if message["type"] != "http.request":
        raise errors.OtherStatus(errors.STATUS_CLIENT_LEFT, "The client disconnected.")
    return message["body"], message["more_body"]
