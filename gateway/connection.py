"""One HTTP connection: uvicorn's, with bounds on what a caller may leave undone: a head, or the reading of an answer.

It must never know what is asked or answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from billing.ids import new_id
from gateway import errors

HEAD_BYTES_MAX = 64 * 1024
# Of an answer, what the kernel takes before its reader has room: left to itself it takes megabytes for each.
UNSENT_BYTES_MAX = 64 * 1024

_log = logging.getLogger(__name__)


class RequestHeadTooLarge(errors.RequestTooLarge):
    status = 431


class BoundedProtocol(HttpToolsProtocol):
    """The parser keeps an unfinished head in memory for ever; here one is refused above HEAD_BYTES_MAX. A caller may
    leave an answer unread for ever; here it is cut off once nothing was read for `reader_patience_s` though there is
    more than the buffers take, or the connection is to close."""

    def __init__(self, *args: Any, reader_patience_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._unparsed_bytes = 0  # of a head that is not complete
        self._field_bytes = 0  # of its complete fields
        self._refused = False
        self._reader_patience_s = reader_patience_s
        self._reader_watch: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # when the watch last looked

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._unparsed_bytes = self._field_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes <= HEAD_BYTES_MAX:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._field_bytes + len(self.url) > HEAD_BYTES_MAX:
            self._refused = True
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head:
            self._unparsed_bytes += len(data)
        if self._refused or (self._in_head and self._unparsed_bytes > HEAD_BYTES_MAX):
            self._refused = True
            self._refuse(RequestHeadTooLarge(f"The request's head is over the limit of {HEAD_BYTES_MAX} bytes."))

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in our shape too."""
        self._refuse(errors.InvalidRequest(msg))

    def _refuse(self, error: errors.ApiError) -> None:
        if self.transport.is_closing():
            return
        body = error.body()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {new_id('req')}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    # ---- a reader that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()
        if self.transport.is_closing():
            self._watch_reader()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_reader()
        super().connection_lost(exc)

    def _watch_reader(self) -> None:
        """From now on, until all was read: what lies here must become less, or the connection is cut."""
        unread = self.transport.get_write_buffer_size()
        if unread and self._reader_watch is None:
            self._unread_bytes = unread
            self._reader_watch = self.loop.call_later(self._reader_patience_s, self._check_reader)

    def _check_reader(self) -> None:
        self._reader_watch = None
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._watch_reader()
            return
        _log.info("reader.cut", extra={"fields": {"unread_bytes": self._unread_bytes}})
        self.transport.abort()

    def _forget_reader(self) -> None:
        if self._reader_watch is not None:
            self._reader_watch.cancel()
            self._reader_watch = None
