"""ASGI applications that send an Answer: as one JSON body, or as a stream of server-sent events.

Each reads one Answer while it watches for the client's disconnect. The Shape encodes the answer in the endpoint's
format. Requests, prices and holds are not known here.
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
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers the stream
]
JSON_HEADERS = [(b"content-type", b"application/json")]
GRANTED = b"x-laneway-max-tokens-granted"
MODEL = b"x-laneway-model"


class Shape(Protocol):
    """Encodes one answer in the format of one endpoint."""

    keep_alive: bytes  # an event without content
    has_logprobs: bool  # then use `whole_parts` and `piece_parts`; `render_body` and `piece` omit logprobs

    def render_body(self, answer: Answer) -> bytes:
        """The JSON body of an answer that ended without an error."""
        ...

    def whole_parts(self, answer: Answer) -> Iterator[bytes]:
        """The body with logprobs or vectors, in parts that are encoded lazily; b"" for a part that is only computed."""
        ...

    def opening(self) -> bytes:
        """The first bytes of a stream, sent as soon as the model is known; b"" if the format has no such bytes."""
        ...

    def piece(self, piece: TextPiece) -> bytes:
        """The events for new text; b"" if the format has no event for this piece."""
        ...

    def piece_parts(self, piece: TextPiece) -> Iterator[bytes]:
        """The events with logprobs, in parts that are encoded lazily."""
        ...

    def closing(self, answer: Answer) -> bytes:
        """The last bytes of a stream that ended without an error: finish reasons and usage."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The last bytes of a stream that failed."""
        ...


class Keeper(Protocol):
    """Stores an answer before its client receives the end of it."""

    async def keep_answer(self, data: bytes) -> bytes:
        """Store the answer that ends with `data`; returns the bytes to send instead."""
        ...

    def abandon_answer(self) -> None:
        """The answer does not end, or the client left. No effect after `keep_answer`."""
        ...


@dataclass(slots=True, frozen=True)
class StreamTimeouts:
    """Seconds without a token after which the headers are sent, and seconds without an event before a keep-alive."""

    first_token_s: float
    keep_alive_s: float


async def watch_caller(receive: Receive, answer: Answer) -> None:
    """Wait until the client disconnects, then call `answer.leave`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.leave()


class WholeAnswer:
    """ASGI application: the answer as one JSON body. Raises the answer's ApiError before anything is sent.

    `kept`: generation continues after the client disconnects, since a retry with the Idempotency-Key may fetch it."""

    def __init__(
        self, answer: Answer, admission: Admission, shape: Shape, *, kept: bool, keeper: Keeper | None = None
    ) -> None:
        self._answer = answer
        self._admission = admission
        self._shape = shape
        self._kept = kept
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_answer(receive, send)
        finally:
            if self._keeper is not None:
                self._keeper.abandon_answer()

    async def _send_answer(self, receive: Receive, send: Send) -> None:
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
            return  # the client disconnected; the owner settles the request
        if answer.body is None and self._shape.has_logprobs:
            await self._send_parts(send)
            return
        body = self._shape.render_body(answer) if answer.body is None else answer.body
        if self._keeper is not None:
            body = await self._keeper.keep_answer(body)
        await _send_json(send, body, [*answer_headers(answer), *self._admission.headers()])

    async def _send_parts(self, send: Send) -> None:
        """Send the body in parts. Its length is unknown, so uvicorn uses chunked encoding."""
        headers = [*JSON_HEADERS, *answer_headers(self._answer), *self._admission.headers()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in piecewise(self._shape.whole_parts(self._answer)):
            if part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def answer_headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    """The granted tokens and the model. While a fallback may still serve, the model is named by the chunks alone."""
    model = [] if answer.model is None else [(MODEL, quote(answer.model, safe="/: ").encode())]
    return [(GRANTED, b"%d" % (answer.granted or 0)), *model]


class BodyAnswer:
    """ASGI application: a JSON body that is known already."""

    def __init__(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._body = body
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_json(send, self._body, self._headers)


class ReplayedAnswer(BodyAnswer):
    """The stored body of an idempotent replay."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body, [(b"idempotent-replayed", b"true")])


async def _send_json(send: Send, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class StreamedAnswer:
    """ASGI application: the answer as server-sent events. Raises the answer's ApiError only before the first token and
    before the headers; a later error is an event of the stream."""

    def __init__(
        self, answer: Answer, admission: Admission, shape: Shape, waits: StreamTimeouts, keeper: Keeper | None = None
    ) -> None:
        self._answer = answer
        self._admission = admission
        self._shape = shape
        self._waits = waits
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        watch = asyncio.create_task(watch_caller(receive, answer))
        try:
            await self._wait_first()
            if answer.left:
                return
            if answer.error is not None and not answer.begun:
                raise answer.error
            headers = [*STREAM_HEADERS, *answer_headers(answer), *self._admission.headers()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # No middleware reads the bodies, and each token has its own body message: bypass the middleware.
            await self._stream(scope.get(SERVER_SEND, send))  # type: ignore[arg-type]
        finally:
            watch.cancel()
            answer.leave()
            if self._keeper is not None:
                self._keeper.abandon_answer()

    async def _wait_first(self) -> None:
        """Wait for the first token, the end, the client's disconnect, or `first_token_s` if tokens are granted by then.
        Until the request is granted or refused the wait continues, since headers depend on it."""
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
                        ticker.note_sent()
                        await send({"type": "http.response.body", "body": body + part, "more_body": True})
                        body = b""
                if answer.ended:
                    body += shape.closing(answer) if answer.error is None else shape.failure(answer.error)
                    if self._keeper is not None:
                        body = await self._keeper.keep_answer(body)
                    await send({"type": "http.response.body", "body": body, "more_body": False})
                    return
                if ticker.due and not body:
                    body = shape.keep_alive
                if body:
                    ticker.note_sent()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    body = b""
                if not (answer.has_news() or answer.ended):
                    await (answer.pushed(push) if opened and not shape.has_logprobs else answer.changed())
                    await push.finish_send()
        finally:
            push.close()
            ticker.stop()


class _Push:
    """Sends new text of an answer inside the owner's call that adds the text, without a task switch.

    The server's `send` coroutine is stepped by hand, and nearly always ends in that step. If the coroutine waits,
    because the client does not read, pushing stops: the exchange's task awaits the coroutine's remaining steps and
    sends later text."""

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
            pieces, encode = self._answer.take_pieces(), self._shape.piece
            body = encode(pieces[0]) if len(pieces) == 1 else b"".join([encode(piece) for piece in pieces])
            if not body:
                return
            self._ticker.note_sent()
            sending = self._send({"type": "http.response.body", "body": body, "more_body": True})
            try:
                waits_for = sending.send(None)  # type: ignore[attr-defined]  # `send` is an `async def`
            except StopIteration:
                return
            self._sending = _Sending(sending, waits_for)
        except Exception as error:  # noqa: BLE001 - `finish_send` raises it in the exchange's task
            self._error = error
        self._answer.stop_pushing()

    async def finish_send(self) -> None:
        """Complete the send that the last push began. Raises that push's error."""
        if self._error is not None:
            raise self._error
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    def close(self) -> None:
        if self._sending is not None:
            self._sending.close()


class _Sending:
    """The remaining steps of a coroutine that was stepped once and yielded the future `waits_for`. One task may await
    it."""

    def __init__(self, coroutine: Any, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, waits_for = self._coroutine, self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine, a cancellation too
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
    """Every `every_s` seconds: if nothing was sent since the last time, sets `due` and calls `wake`."""

    __slots__ = ("_every_s", "_handle", "_loop", "_sent", "_wake", "due")

    def __init__(self, every_s: float, wake: Callable[[], None]) -> None:
        self._sent = True
        self.due = False
        self._every_s = every_s
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(every_s, self._fire)

    def _fire(self) -> None:
        self._handle = self._loop.call_later(self._every_s, self._fire)
        self.due = not self._sent
        self._sent = False
        if self.due:
            self._wake()

    def note_sent(self) -> None:
        self._sent = True
        self.due = False

    def stop(self) -> None:
        self._handle.cancel()
