"""The results of a batch of Anthropic's API, made from its output file and its error file while they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from gateway.batches.claims import EXPIRED_CODE
from gateway.batches.lines import OK
from gateway.batches.sealing import OutputLine
from gateway.errors import encode
from gateway.files.contents import ContentReader

RESULT_BYTES = 64 * 1024  # of results that are sent at once, at least


class SucceededResult(msgspec.Struct, frozen=True, tag_field="type", tag="succeeded"):
    message: msgspec.Raw


class ErroredResult(msgspec.Struct, frozen=True, tag_field="type", tag="errored"):
    error: msgspec.Raw


class CanceledResult(msgspec.Struct, frozen=True, tag_field="type", tag="canceled"):
    """The request had not ended when its batch was cancelled."""


class ExpiredResult(msgspec.Struct, frozen=True, tag_field="type", tag="expired"):
    """The request had not ended at the end of its batch's 24 hours."""


Result = SucceededResult | ErroredResult | CanceledResult | ExpiredResult


class MessageBatchResult(msgspec.Struct, frozen=True):
    """A line of the results."""

    custom_id: str
    result: Result


_read_output = msgspec.json.Decoder(OutputLine).decode


async def message_results(readers: Sequence[ContentReader]) -> AsyncIterator[bytes]:
    """One line of JSON for each line of the files. Raises TextUnreadable, ContentStoreFailed."""
    for reader in readers:
        rest = bytearray()
        async for part in reader.stream_bytes():
            rest += part
            if len(rest) >= RESULT_BYTES and (end := rest.rfind(b"\n")) >= 0:
                yield await asyncio.to_thread(_results_of, bytes(rest[: end + 1]))
                del rest[: end + 1]
        yield await asyncio.to_thread(_results_of, bytes(rest))


def _results_of(lines: bytes) -> bytes:
    return b"".join([_result_of(line) + b"\n" for line in lines.split(b"\n") if line])


def _result_of(line: bytes) -> bytes:
    output = _read_output(line)
    result: Result
    if output.response is None:
        is_expired = output.error is not None and output.error.code == EXPIRED_CODE
        result = ExpiredResult() if is_expired else CanceledResult()
    elif output.response.status_code == OK:
        result = SucceededResult(output.response.body)
    else:
        result = ErroredResult(output.response.body)
    return encode(MessageBatchResult(output.custom_id, result))
