"""Answers as bytes on the wire: one JSON body, or a stream of server-sent events, straight onto ASGI's `send`.

It reads an Answer and watches whether its caller is still there. How an answer is said is its Shape's; what was asked
and what it cost it must never know.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from litestar.types import Receive, Scope, Send

from gateway.errors import ApiError
from gateway.generation.answer import Answer, TextPiece
from gateway.generation.logprobs import piecewise
from gateway.http.exchange import SERVER_SEND
from gateway.limits.limiter import Admission

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream
]
JSON_HEADERS = [(b"content-type", b"application/json")]
GRANTED = b"x-laneway-max-tokens-granted"
MODEL = b"x-laneway-model"


class Shape(Protocol):
    """How one endpoint says one answer."""

    keep_alive: bytes  # an event that says nothing
    reports: bool  # the answer has logprobs: use `whole_parts` and `piece_parts`: `render_body` and `piece` omit them

    def render_body(self, answer: Answer) -> bytes:
        """The body of an answer that has ended well."""
        ...

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        """As `render_body`, with logprobs, in parts that are encoded lazily."""
        ...

    def opening(self) -> bytes:
        """What a stream begins with, as soon as the model is known."""
        ...

    def piece(self, piece: TextPiece) -> bytes:
        """What is new of one text; b"" when that is nothing to say."""
        ...

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        """As `piece`, with logprobs, in parts that are encoded lazily."""
        ...

    def closing(self, answer: Answer) -> bytes:
        """The end of a stream that ended well."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The last bytes of a stream that failed."""
        ...


@dataclass(slots=True, frozen=True)
class StreamTimeouts:
    """How long a stream may be silent (seconds): before its headers, and after them."""

    first_token_s: float
    keep_alive_s: float


async def watch_caller(receive: Receive, answer: Answer) -> None:
    """Until the caller is gone; then the answer knows."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.leave()


class WholeAnswer:
    """ASGI application: the answer as one JSON body. Raises its ApiError before anything is sent. A `kept`
    answer is finished even if the caller disconnects, since a retry with its Idempotency-Key may fetch it."""

    def __init__(self, answer: Answer, admission: Admission, shape: Shape, *, kept: bool) -> None:
        self._answer = answer
        self._admission = admission
        self._shape = shape
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        watch = None if self._kept else asyncio.create_task(watch_caller(receive, answer))
        try:
            if not (answer.ended or answer.left):
                await answer.changed()
        finally:
            if watch is not None:
                watch.cancel()
                answer.leave()
        if answer.error is not None:
            raise answer.error
        if answer.usage is None:
            return  # the caller left; the owner brings it to its end
        if answer.body is None and self._shape.reports:
            await self._send_parts(send)
            return
        body = self._shape.render_body(answer) if answer.body is None else answer.body
        await _send_json(send, body, [*_told(answer), *self._admission.headers()])

    async def _send_parts(self, send: Send) -> None:
        """Send the body in parts. Its length is unknown, so uvicorn uses chunked encoding."""
        headers = [*JSON_HEADERS, *_told(self._answer), *self._admission.headers()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in piecewise(self._shape.whole_parts(self._answer)):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _told(answer: Answer) -> list[tuple[bytes, bytes]]:
    """Beside the answer. Before a token is there, another model may yet serve it: then its chunks alone name it."""
    model = [] if answer.model is None else [(MODEL, quote(answer.model, safe="/: ").encode())]
    return [(GRANTED, b"%d" % (answer.granted or 0)), *model]


class ReplayedAnswer:
    """ASGI application: a body as it was sent before."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_json(send, self._body, [(b"idempotent-replayed", b"true")])


async def _send_json(send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class StreamedAnswer:
    """ASGI application: the answer as server-sent events. Raises its ApiError only before the first byte."""

    def __init__(self, answer: Answer, admission: Admission, shape: Shape, waits: StreamTimeouts) -> None:
        self._answer = answer
        self._admission = admission
        self._shape = shape
        self._waits = waits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        watch = asyncio.create_task(watch_caller(receive, answer))
        try:
            await self._first()
            if answer.left:
                return
            if answer.error is not None and not answer.begun:
                raise answer.error
            headers = [*STREAM_HEADERS, *_told(answer), *self._admission.headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # No middleware needs the bodies, and there is one for every token: bypass them.
            await self._stream(scope.get(SERVER_SEND, send))  # type: ignore[arg-type]
        finally:
            watch.cancel()
            answer.leave()

    async def _first(self) -> None:
        """Until something is known about the answer, or the wait for it is over. What is granted, or that it is
        refused, is known before the headers in any case."""
        answer, loop = self._answer, asyncio.get_running_loop()
        timer = loop.call_later(self._waits.first_token_s, answer.wake)
        try:
            while not (answer.begun or answer.ended or answer.left):
                await answer.changed()
                if answer.granted is not None:
                    break
                timer = loop.call_later(self._waits.first_token_s, answer.wake)
        finally:
            timer.cancel()

    async def _stream(self, send: Send) -> None:
        answer, shape = self._answer, self._shape
        ticker = _Ticker(self._waits.keep_alive_s, answer.wake)
        ticker.due = not (answer.begun or answer.ended)
        push = _Push(answer, shape, send, ticker)
        body, opened = b"", False
        try:
            while not answer.left:
                if not opened and (answer.model is not None or answer.usage is not None):
                    body, opened = shape.opening(), True
                for piece in answer.take_all() if answer.ended else answer.take_pieces():
                    if not piece.drawn:
                        body += shape.piece(piece)
                        continue
                    async for part in piecewise(shape.piece_parts(piece)):
                        ticker.said()
                        await send({"type": "http.response.body", "body": body + part, "more_body": True})
                        body = b""
                if answer.ended:
                    body += shape.closing(answer) if answer.error is None else shape.failure(answer.error)
                    await send({"type": "http.response.body", "body": body, "more_body": False})
                    return
                if ticker.due and not body:
                    body = shape.keep_alive
                if body:
                    ticker.said()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    body = b""
                if not (answer.has_news() or answer.ended):
                    await (answer.pushed(push) if opened and not shape.reports else answer.changed())
                    await push.finish_send()
        finally:
            push.close()
            ticker.stop()


class _Push:
    """Sends new text of an answer from inside the call that adds it, without a task switch: the server's `send`
    coroutine is stepped by hand, and nearly always ends in that step. If it waits because the client does not read,
    pushing stops, and the exchange's task awaits the rest of it and sends what was added meanwhile."""

    __slots__ = ("_answer", "_error", "_send", "_sending", "_shape", "_ticker")

    def __init__(self, answer: Answer, shape: Shape, send: Send, ticker: _Ticker) -> None:
        self._answer = answer
        self._shape = shape
        self._send = send
        self._ticker = ticker
        self._sending: _Sending | None = None
        self._error: Exception | None = None

    def __call__(self) -> None:
        try:
            pieces, say = self._answer.take_pieces(), self._shape.piece
            body = say(pieces[0]) if len(pieces) == 1 else b"".join([say(piece) for piece in pieces])
            if not body:
                return
            self._ticker.said()
            sending = self._send({"type": "http.response.body", "body": body, "more_body": True})
            try:
                waits_for = sending.send(None)  # type: ignore[attr-defined]  # `send` is an `async def`
            except StopIteration:
                return
            self._sending = _Sending(sending, waits_for)
        except Exception as error:  # noqa: BLE001 - raised again in the task of the exchange
            self._error = error
        self._answer.stop_pushing()

    async def finish_send(self) -> None:
        """Complete the send that the last push began. Raises the error of that push."""
        if self._error is not None:
            raise self._error
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    def close(self) -> None:
        if self._sending is not None:
            self._sending.close()


class _Sending:
    """A coroutine that was stepped once and waits for a future. Await it in one task."""

    def __init__(self, coroutine: Any, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, waits_for = self._coroutine, self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine's to handle, a cancellation too
                step = functools.partial(coroutine.throw, error)
            else:
                step = functools.partial(coroutine.send, None)
            try:
                waits_for = step()
            except StopIteration:
                return

    def close(self) -> None:
        self._coroutine.close()


class _Ticker:
    """Fires every `every_s`; `due` when nothing was said since the last time."""

    __slots__ = ("_every_s", "_handle", "_loop", "_spoke", "_wake", "due")

    def __init__(self, every_s: float, wake: Callable[[], None]) -> None:
        self._spoke = True
        self.due = False
        self._every_s = every_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(every_s, self._fire)

    def _fire(self) -> None:
        self._handle = self._loop.call_later(self._every_s, self._fire)
        self.due = not self._spoke
        self._spoke = False
        if self.due:
            self._wake()

    def said(self) -> None:
        self._spoke = True
        self.due = False

    def stop(self) -> None:
        self._handle.cancel()
