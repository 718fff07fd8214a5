"""Answers as bytes on the wire: one JSON body, or a stream of server-sent events, straight onto ASGI's `send`.

It reads an Answer and watches whether its caller is still there. It must never know what was asked or what it cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from litestar.types import Receive, Scope, Send
from msgspec import UNSET

from gateway import wire
from gateway.answer import Answer
from gateway.generation import InFlight

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream
]
JSON_HEADERS = [(b"content-type", b"application/json")]


class ChunkWriter:
    """Chunks of one stream. What is the same in every chunk is encoded once."""

    def __init__(self, work: InFlight, created: int, include_usage: bool) -> None:
        self._work = work
        self._created = created
        self._include_usage = include_usage
        # An encoded string has its quotes escaped, so this mark stands once.
        mark = b'"content":""'
        chunk = self._chunk(wire.Delta(content=""))
        at = chunk.index(mark) + len(mark) - 2
        self._before, self._after = chunk[:at], chunk[at + 2 :]

    def role(self) -> bytes:
        return self._chunk(wire.Delta(role="assistant", content=""))

    def text(self, text: str) -> bytes:
        return self._before + wire.encode(text) + self._after

    def finish(self, reason: wire.FinishReason) -> bytes:
        return self._chunk(wire.Delta(), reason)

    def usage(self, usage: wire.Usage) -> bytes:
        """Empty unless it was asked for."""
        return self._event([], usage) if self._include_usage else b""

    def _chunk(self, delta: wire.Delta, reason: wire.FinishReason | None = None) -> bytes:
        return self._event([wire.ChunkChoice(delta=delta, finish_reason=reason)], None)

    def _event(self, choices: list[wire.ChunkChoice], usage: wire.Usage | None) -> bytes:
        work = self._work
        chunk = wire.ChatCompletionChunk(
            id=completion_id(work),
            created=self._created,
            model=work.target.name,
            service_tier=work.service_tier,
            system_fingerprint=work.fingerprint,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
        )
        return b"data: " + wire.encode(chunk) + b"\n\n"


def completion_id(work: InFlight) -> str:
    return "chatcmpl-" + work.request_id.removeprefix("req_")


@dataclass(slots=True, frozen=True)
class Waits:
    """How long a stream may be silent (seconds): before its headers, and after them."""

    first_token_s: float
    keep_alive_s: float


async def watch_caller(receive: Receive, answer: Answer) -> None:
    """Until the caller is gone; then the answer knows."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answer.leave()


class WholeAnswer:
    """ASGI application: the answer as one JSON body. Raises its ApiError before anything is sent."""

    def __init__(self, work: InFlight) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, answer = self._work, self._work.answer
        watch = asyncio.create_task(watch_caller(receive, answer))
        try:
            if not (answer.ended or answer.left):
                await answer.changed()
        finally:
            watch.cancel()
            answer.leave()
        if answer.error is not None:
            raise answer.error
        if answer.usage is None or answer.finish_reason is None:
            return  # the caller left; the owner brings it to its end
        body = wire.encode(
            wire.ChatCompletion(
                id=completion_id(work),
                created=int(time.time()),
                model=work.target.name,
                service_tier=work.service_tier,
                system_fingerprint=work.fingerprint,
                choices=[
                    wire.Choice(message=wire.AnswerMessage(content=answer.take()), finish_reason=answer.finish_reason)
                ],
                usage=answer.usage,
            )
        )
        headers = [*JSON_HEADERS, (b"content-length", str(len(body)).encode()), *work.admission.headers()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


class StreamedAnswer:
    """ASGI application: the answer as server-sent events. Raises its ApiError only before the first byte."""

    def __init__(self, work: InFlight, waits: Waits, include_usage: bool) -> None:
        self._work = work
        self._waits = waits
        self._chunks = ChunkWriter(work, int(time.time()), include_usage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._work.answer
        watch = asyncio.create_task(watch_caller(receive, answer))
        try:
            await self._first()
            if answer.left:
                return
            if answer.error is not None and not answer.begun:
                raise answer.error
            headers = STREAM_HEADERS + self._work.admission.headers()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._stream(send)
        finally:
            watch.cancel()
            answer.leave()

    async def _first(self) -> None:
        """Until something is known about the answer, or the wait for it is over."""
        answer = self._work.answer
        timer = asyncio.get_running_loop().call_later(self._waits.first_token_s, answer.wake)
        try:
            if not (answer.begun or answer.ended or answer.left):
                await answer.changed()
        finally:
            timer.cancel()

    async def _stream(self, send: Send) -> None:
        answer, chunks = self._work.answer, self._chunks
        role_sent = False
        ticker = _Ticker(self._waits.keep_alive_s, answer.wake)
        ticker.due = not (answer.begun or answer.ended)
        try:
            while not answer.left:
                body = b""
                if answer.begun and not role_sent:
                    role_sent = True
                    body = chunks.role()
                if text := answer.take():
                    body += chunks.text(text)
                if answer.ended:
                    body += self._last()
                    await send({"type": "http.response.body", "body": body, "more_body": False})
                    return
                if body or ticker.due:
                    ticker.said()
                    await send({"type": "http.response.body", "body": body or KEEP_ALIVE, "more_body": True})
                if not (answer.has_text() or answer.ended):
                    await answer.changed()
        finally:
            ticker.stop()

    def _last(self) -> bytes:
        answer = self._work.answer
        if answer.error is not None:
            return b"data: " + answer.error.body() + b"\n\n"
        assert answer.finish_reason is not None
        assert answer.usage is not None
        return self._chunks.finish(answer.finish_reason) + self._chunks.usage(answer.usage) + DONE


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
