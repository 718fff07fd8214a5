"""uvicorn's HTTP connection with deadlines and bounds for slow clients: an unfinished head, a body that is still
arriving after its answer, and an answer that the client does not read. Large bodies are read at a bounded pace.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from billing.ids import new_id
from gateway import errors
from gateway.limits.connection_limits import Connections
from gateway.limits.read_pace import ReadPace

# Deadline in seconds for a whole head, counted from accept, or on a kept-alive connection from the head's first byte.
# Also the deadline for the rest of a body after its request has been answered.
HEAD_S_MAX = 10.0
HEAD_BYTES_MAX = 64 * 1024
# TCP_NOTSENT_LOWAT: unsent bytes of an answer that the kernel buffers. Its default is megabytes for each connection.
UNSENT_BYTES_MAX = 64 * 1024

# Header fields that may occur once: of two, a proxy and this server could each obey a different one.
SINGLE_FIELDS = (b"host", b"authorization", b"x-api-key", b"content-type", b"content-encoding", b"idempotency-key")

# JDK clients and `curl --http2` send the field Upgrade, and the parser skips the body of such a request. A server may
# ignore the field (RFC 9110 7.8), so it is renamed for the parser, to a name of the same length.
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_NOT_UPGRADE = b"\r\noffered:"
_BEGINNING_OF_UPGRADE = re.compile(rb"\r(\n(u(p(g(r(a(d(e)?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"

_log = logging.getLogger(__name__)


class RequestHeadTooLarge(errors.RequestTooLarge):
    status = 431


def _too_large() -> RequestHeadTooLarge:
    return RequestHeadTooLarge(f"The request's head is over the limit of {HEAD_BYTES_MAX} bytes.")


def _answer(error: errors.ApiError) -> bytes:
    """The complete HTTP response to `error`, after which the connection is closed."""
    body = error.body()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"x-content-type-options: nosniff\r\nx-request-id: {new_id('req')}\r\ncontent-length: {len(body)}\r\n"
        f"connection: close\r\n\r\n"
    )
    return head.encode() + body


def _close_delimited(cycle: RequestResponseCycle, app: Any) -> Any:
    """Wrap `app` for an HTTP/1.0 client, which does not know chunks (RFC 9112 6.1): an answer without Content-Length
    ends with the connection. uvicorn sends chunks unless `chunked_encoding` is False; it then expects a length."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_plain(message: Any) -> None:
            if message["type"] == "http.response.start":
                if all(name.lower() != b"content-length" for name, _ in message["headers"]):
                    cycle.chunked_encoding = False
            elif cycle.chunked_encoding is False and cycle.expected_content_length == 0:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


class _PacedFlow(FlowControl):
    """uvicorn's flow control, which pauses reads while a body's buffer is full, and a pause of the ReadPace."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._turn_paused = False

    def pause_reading(self) -> None:
        if self._turn_paused:
            self.read_paused = True
        else:
            super().pause_reading()

    def resume_reading(self) -> None:
        if self._turn_paused:
            self.read_paused = False
        else:
            super().resume_reading()

    def pause_turn(self) -> None:
        self._turn_paused = True
        if not self.read_paused and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_turn(self) -> None:
        self._turn_paused = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Adds bounds that uvicorn lacks: for an unfinished head, a body after its answer, and an unread answer.

    A head over HEAD_BYTES_MAX is refused with 431, and a head not complete within `head_s` seconds with 408. A
    connection whose client reads nothing for `reader_patience_s` seconds is aborted, if the buffers are full or the
    connection is closing. `connections` bounds the number of connections, `read_pace` the bytes of bodies that are
    read in one turn of the event loop."""

    def __init__(
        self,
        *args: Any,
        reader_patience_s: float,
        connections: Connections,
        read_pace: ReadPace,
        head_s: float = HEAD_S_MAX,
        stopping: Callable[[], bool] = lambda: False,
        **kwargs: Any,
    ) -> None:
        """`stopping`: whether answers carry `Connection: close`, since the process stops."""
        super().__init__(*args, **kwargs)
        self._stopping = stopping
        self._bounds = connections
        self._read_pace = read_pace
        self._head_s = head_s
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = True
        self._in_body = False
        self._messages = 0  # number of heads that began to arrive
        self._unparsed_bytes = 0  # of a head that is not complete yet
        self._field_bytes = 0  # of the head's complete fields
        self._held = b""  # the last bytes of a head, held back from the parser
        self._head_tail = b""  # the last bytes of an unfinished head that the parser has
        self._refused = False
        self._refusal: errors.ApiError | None = None  # decided when a head was complete
        self._reader_patience_s = reader_patience_s
        self._reader_watch: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # at the last check of `_reader_watch`
        self._running_cycle: RequestResponseCycle | None = None  # of the request being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type
        super().connection_made(transport)
        self._paced_flow = self.flow = _PacedFlow(transport)
        if not self._bounds.open(self, self.client[0] if self.client else ""):
            self._refused = True
            self._refuse(errors.Overloaded("Too many connections are open. Try again in a moment."))
            return
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
        self._set_deadline()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._messages += 1
        self._unparsed_bytes = self._field_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes <= HEAD_BYTES_MAX:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        self._clear_deadline()
        if self._field_bytes + len(self.url) > HEAD_BYTES_MAX:
            self._refusal = _too_large()
        elif wrong := self._wrong_fields():
            self._refusal = errors.InvalidRequest(wrong)
        if self._refusal is not None:
            self._refused = True
            return
        self._bounds.busy(self)
        super().on_headers_complete()

    def _wrong_fields(self) -> str:
        """The reason to refuse the head, or "": no Host in HTTP/1.1 (RFC 9112 3.2), a repeated SINGLE_FIELDS field."""
        names = [name for name, _ in self.headers]
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            return "The request has no Host header; HTTP/1.1 needs one."
        if len(set(names)) < len(names):
            for name in SINGLE_FIELDS:
                if names.count(name) > 1:
                    return f"The request has {names.count(name)} {name.decode().title()} headers; send one."
        return ""

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._refused:
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._clear_deadline()
            self._bounds.idle(self)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        between, messages = not (self._in_head or self._in_body), self._messages
        if not self._in_body:
            data = self._without_upgrade(data)
        super().data_received(data)
        if self._in_body:
            self._read_pace.count_read(self._paced_flow, len(data))
        self._head_tail = (self._head_tail + data)[1 - len(_END_OF_HEAD) :] if self._in_head else b""
        if self._in_head:
            self._unparsed_bytes += len(data)
        if self._refusal is None and self._in_head and self._unparsed_bytes > HEAD_BYTES_MAX:
            self._refused, self._refusal = True, _too_large()
        if self._refusal is not None:
            self._refuse(self._refusal)
        elif self._in_head or (between and self._messages == messages):  # the latter: blank lines before a head
            self._set_deadline()
        elif self.timeout_keep_alive_task is None and self._idle() and not self.transport.is_closing():
            # The rest of a body arrived after its answer: uvicorn sets no keep-alive timer then.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _without_upgrade(self, data: bytes) -> bytes:
        """Rename the field Upgrade in the head that begins or continues with `data`. The end of `data` is held back if
        it may be the beginning of that field."""
        head, self._held = self._held + data, b""
        end = (self._head_tail + head).find(_END_OF_HEAD)
        if end >= 0:
            end += len(_END_OF_HEAD) - len(self._head_tail)
            return _UPGRADE.sub(_NOT_UPGRADE, head[:end]) + head[end:]
        if beginning := _BEGINNING_OF_UPGRADE.search(head):
            head, self._held = head[: beginning.start()], beginning[0]
        return _UPGRADE.sub(_NOT_UPGRADE, head)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, with an error body like any other. uvicorn calls it."""
        self._refuse(errors.InvalidRequest(msg))

    def _refuse(self, error: errors.ApiError) -> None:
        if self.transport.is_closing():
            return
        running = self._running_cycle
        if running is not None and running.response_started and not running.response_complete:
            self.transport.abort()  # the answer to an earlier request is half written
            return
        self.transport.write(_answer(error))
        self.transport.close()
        self._watch_reader()

    # ---- the end of the process

    def close_after_answer(self) -> None:
        """Close the connection when the request that runs on it is answered."""
        if self._running_cycle is not None:
            self._running_cycle.keep_alive = False

    def close_without_request(self, *, unused: bool) -> None:
        """Close the connection if no request runs or arrives on it. `unused`: also if it had no request yet."""
        is_unused = self.cycle is None and not self._messages
        if not (self._idle() or (unused and is_unused)) or self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):  # else the client has closed it, or a request is in the kernel's buffer
            self.transport.close()
            self._watch_reader()

    # ---- deadlines of a head and of the rest of a body

    def evict(self) -> None:
        """Close at once, for a new connection. `Connections` has counted this connection as closed already."""
        self.transport.abort()

    def _answering(self) -> bool:
        return self._running_cycle is not None and not self._running_cycle.response_complete

    def _idle(self) -> bool:
        """A request was answered, and no byte of another request has arrived."""
        return self.cycle is not None and self.cycle.response_complete and not (self._in_head or self._in_body)

    def _set_deadline(self) -> None:
        """Start the deadline, unless one is running."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._head_s, self._deadline_passed)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._answering():  # a pipelined head: its deadline begins after the running answer
            self._set_deadline()
            return
        self._refused = True
        self._bounds.count_deadline("body_deadline" if self._in_body else "head_deadline")
        if self._in_head and self._messages:  # part of a head has arrived
            self._refuse(errors.OtherStatus(408, f"The request's head took over {self._head_s:g} s to arrive."))
        else:
            self.transport.abort()

    # ---- clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reader_watch()
        if self.transport.is_closing():
            self._watch_reader()

    def on_response_complete(self) -> None:
        more = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif self._in_body and not more:
            self._set_deadline()
        elif not more:
            self._bounds.idle(self)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    # ---- disconnects

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running_cycle = cycle
        if self._stopping():
            cycle.keep_alive = False
        if cycle.scope["http_version"] == "1.0":
            app = _close_delimited(cycle, app)
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> None:
        """Stop the answer now. The transport closes when this returns, but `connection_lost` runs later, and a write in
        between would raise."""
        self._disconnect_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.closed(self)
        self._clear_deadline()
        self._stop_reader_watch()
        self._disconnect_answer()
        super().connection_lost(exc)

    def _disconnect_answer(self) -> None:
        """Signal the disconnect to the request being answered, and drop pipelined requests. uvicorn signals it to the
        connection's last request alone, which may be a pipelined request."""
        self.pipeline.clear()
        running = self._running_cycle
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def _watch_reader(self) -> None:
        """While bytes are unsent, check every `reader_patience_s` seconds that their number fell; else abort."""
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

    def _stop_reader_watch(self) -> None:
        if self._reader_watch is not None:
            self._reader_watch.cancel()
            self._reader_watch = None
