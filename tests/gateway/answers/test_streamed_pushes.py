"""Text is sent from inside the call that adds it: in order, once, and by the exchange's task if `send` waits."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.answers.sse import StreamedAnswer, StreamTimeouts
from gateway.errors import ApiError, InternalError
from gateway.generation.answer import Answer, TextPiece, TokenUsage


class Plain:
    """A Shape that sends only the text."""

    keep_alive = b"~"
    has_logprobs = False

    def render_body(self, answer: Answer) -> bytes:
        raise AssertionError("it streams")

    def opening(self) -> bytes:
        return b"<"

    def piece(self, piece: TextPiece) -> bytes:
        return piece.text.encode()

    def closing(self, answer: Answer) -> bytes:
        return b">"

    def failure(self, error: ApiError) -> bytes:
        return b"!"


class NoLimits:
    def headers(self) -> list[tuple[bytes, bytes]]:
        return []


class Exchange:
    """A server whose `send` waits while `paused`, as uvicorn's does while a client does not read."""

    def __init__(self) -> None:
        self.answer = Answer(2, stream=True)
        self.answer.granted, self.answer.model = 9, "m"
        self.body = b""
        self.sends = 0
        self.writable = asyncio.Event()
        self.writable.set()
        self.gone = asyncio.Event()
        self.failing: Exception | None = None
        app = StreamedAnswer(self.answer, NoLimits(), Plain(), StreamTimeouts(60.0, 60.0))  # type: ignore[arg-type]
        self.task = asyncio.create_task(app({}, self.receive, self.send))  # type: ignore[arg-type]

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.failing is not None:
            raise self.failing
        if not self.writable.is_set():
            await self.writable.wait()
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.sends += 1

    async def begun(self) -> None:
        self.answer.add_text(0, "a")
        while self.body != b"<a":  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_what_is_added_is_sent_before_the_call_returns() -> None:
    exchange = Exchange()
    await exchange.begun()
    exchange.answer.add_text(0, "b")
    assert exchange.body == b"<ab"
    exchange.answer.add_text(1, "c")
    assert exchange.body == b"<abc"
    exchange.answer.finish_answer(TokenUsage(1, 0, 3))
    await exchange.task
    assert exchange.body == b"<abc>"


async def test_while_send_waits_nothing_is_lost_and_nothing_overtakes() -> None:
    exchange, draw = Exchange(), random.Random(7)
    await exchange.begun()
    said = "a"
    for number in range(300):
        text = f"{number},"
        exchange.answer.add_text(0, text)
        said += text
        if draw.random() < 0.2:
            exchange.writable.clear()
        elif draw.random() < 0.4:
            exchange.writable.set()
        if draw.random() < 0.5:
            await asyncio.sleep(0)
    exchange.writable.set()
    exchange.answer.finish_answer(TokenUsage(1, 0, 300))
    await exchange.task
    assert exchange.body.decode() == f"<{said}>"


async def test_a_caller_who_leaves_while_send_waits_ends_the_exchange() -> None:
    exchange = Exchange()
    await exchange.begun()
    exchange.writable.clear()
    exchange.answer.add_text(0, "b")
    exchange.gone.set()
    await asyncio.sleep(0)
    exchange.writable.set()  # uvicorn resumes all waiters when the connection is lost
    await exchange.task
    assert exchange.answer.left


async def test_an_exchange_that_is_cancelled_while_send_waits() -> None:
    exchange = Exchange()
    await exchange.begun()
    exchange.writable.clear()
    exchange.answer.add_text(0, "b")
    await asyncio.sleep(0)
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    assert exchange.answer.left


async def test_what_send_raises_is_the_exchanges_not_the_owners() -> None:
    exchange = Exchange()
    await exchange.begun()
    exchange.failing = RuntimeError("no such connection")
    exchange.answer.add_text(0, "b")  # must not raise in the owner's call
    with pytest.raises(RuntimeError, match="no such connection"):
        await exchange.task


async def test_an_answer_that_fails_says_so_after_what_was_sent() -> None:
    exchange = Exchange()
    await exchange.begun()
    exchange.answer.add_text(0, "b")
    exchange.answer.fail(InternalError())
    await exchange.task
    assert exchange.body == b"<ab!"
