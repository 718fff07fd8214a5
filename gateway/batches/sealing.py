"""The output of a line of a batch: one line of JSON for the output file or the error file, compressed and encrypted."""

from __future__ import annotations

import hashlib
import zlib

import msgspec

from gateway.errors import encode
from gateway.stored.texts import TextKey, TextUnreadable

COMPRESSION = 1  # of zlib: fast
REQUEST_ID_CHARS = 32


class LineResponse(msgspec.Struct, frozen=True):
    """The endpoint's answer to the line's body."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineRefusal(msgspec.Struct, frozen=True):
    """Why the line was not run."""

    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    """A line of an output file or an error file: a response, or the reason why there is none."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineRefusal | None


def line_request_id(batch_id: str, line: int, epoch: int, number: int) -> str:
    """The id of one attempt of a line: the `number`th under the worker's lease of `epoch`. Each attempt has its own id,
    so the hold of a lost attempt is never taken for the hold of a later one."""
    digest = hashlib.sha256(f"{batch_id} {line} {epoch} {number}".encode()).hexdigest()
    return f"req_{digest[:REQUEST_ID_CHARS]}"


def answered_line(custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """The JSON of a line that was answered; `body`: JSON."""
    response = LineResponse(status, request_id, msgspec.Raw(body))
    return encode(OutputLine(_output_id(request_id), custom_id, response, None))


def unrun_line(custom_id: str, batch_id: str, line: int, code: str, message: str) -> bytes:
    """The JSON of a line that was not run when its batch ended."""
    request_id = line_request_id(batch_id, line, 0, 0)
    return encode(OutputLine(_output_id(request_id), custom_id, None, LineRefusal(code, message)))


def _output_id(request_id: str) -> str:
    return f"batch_{request_id}"


def seal_output(key: TextKey, batch_id: str, line: int, data: bytes) -> bytes:
    return key.seal(zlib.compress(data, COMPRESSION), _place(batch_id, line))


def open_output(key: TextKey, batch_id: str, line: int, sealed: bytes) -> bytes:
    """Raises TextUnreadable."""
    try:
        return zlib.decompress(key.open(sealed, _place(batch_id, line)))
    except zlib.error as error:
        raise TextUnreadable(f"it does not decompress: {error}") from None


def is_readable(key: TextKey, batch_id: str, line: int, sealed: bytes) -> bool:
    try:
        open_output(key, batch_id, line, sealed)
    except TextUnreadable:
        return False
    return True


def _place(batch_id: str, line: int) -> str:
    """To which the output is bound."""
    return f"batch {batch_id} line {line}"
