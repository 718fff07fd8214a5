"""Stores the answer of a response in the background as it is made, and streams stored responses.

The recorder is the only reader of the Answer. HTTP exchanges stream the stored events, also the exchange whose request
made the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

from billing.database import DatabaseUnavailable
from billing.ledger.checkpoints import Checkpoint
from gateway.answers.responses_shape import KEEP_ALIVE, ResponseShape, status_of
from gateway.answers.sse import STREAM_HEADERS
from gateway.errors import ApiError, InternalError, ResponseCancelled
from gateway.generation.answer import Answer, EarlyEnding, TokenUsage
from gateway.generation.endings import EndingCode
from gateway.stored.background import BackgroundStore, EventGroup, EventWrite, ResponseEnd, WriteResult
from gateway.stored.conversation_items import TurnItems

BATCH_S = 0.1  # between two groups of events of one response
RETRY_S = 1.0  # between two attempts to write while the database is unavailable
END_WAIT_S = 2.0  # the longest wait of a settlement for the last group
POLL_S = 0.5  # between two reads of a response that another gateway makes, and of requests to cancel

_log = logging.getLogger(__name__)


class ResponseRecorder:
    """Stores one answer."""

    def __init__(
        self,
        answer: Answer,
        shape: ResponseShape,
        store: BackgroundStore,
        *,
        tenant_id: str,
        response_id: str,
        request_id: str,
        usage_shown: Callable[[], TokenUsage],
        added_items: Callable[[str, bytes], TurnItems | None],
    ) -> None:
        """`usage_shown`: the usage up to the last piece of the answer. `added_items`: from the status and the response
        object, the items that are added to the conversation."""
        self._answer = answer
        self._shape = shape
        self._store = store
        self._tenant_id = tenant_id
        self._response_id = response_id
        self._request_id = request_id
        self._usage_shown = usage_shown
        self._added_items = added_items
        self._end: tuple[TokenUsage, ApiError | None] | None = None
        self._stored = asyncio.Event()  # the last group is stored, or cannot be
        self._ending = asyncio.Event()
        answer.record_end = self._record_end

    def cancel(self) -> None:
        """Stop the generation, with the ending `cancelled`. No effect on an answer that has ended."""
        self._answer.stop(EarlyEnding(EndingCode.CANCELLED, ResponseCancelled()))

    def abandon(self) -> None:
        """Stop the generation of an answer that cannot be stored. Called instead of `run`, or by it."""
        self._stored.set()
        self.cancel()

    async def run(self) -> None:
        """Returns when the last group is stored, or cannot be."""
        try:
            await self._record()
        except Exception:  # noqa: BLE001 - the task's edge: the fault is logged, and the response ends as failed
            _log.exception("background.failed", extra={"fields": {"response": self._response_id}})
            self._answer.stop(EarlyEnding(EndingCode.INTERNAL_ERROR, InternalError()))
            await self._retried(self._store.end_lost(self._response_id))
        finally:
            self._stored.set()

    async def _record_end(self, usage: TokenUsage, error: ApiError | None) -> None:
        """Implements `Answer.record_end`. If the database is unavailable, the settlement waits for at most
        END_WAIT_S."""
        self._answer.usage = usage
        self._end = usage, error
        self._ending.set()
        self._answer.wake()
        try:
            async with asyncio.timeout(END_WAIT_S):
                await self._stored.wait()
        except TimeoutError:
            _log.warning("background.end_not_stored", extra={"fields": {"response": self._response_id}})

    async def _record(self) -> None:
        answer, shape = self._answer, self._shape
        opened = False
        while True:
            if not (answer.has_news() or answer.ended or self._end):
                await answer.changed()
            ends = answer.ended or self._end is not None
            first, events = shape.number + 1, b""
            if not opened and (answer.begun or ends):
                events, opened = shape.opening(), True
            usage = self._usage_shown() if answer.begun and not ends else None
            events += b"".join([shape.piece(piece) for piece in (answer.take_all() if ends else answer.take_pieces())])
            if ends:
                await self._store_end(first, events)
                return
            if events and not await self._store_group(first, events, usage):
                return
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(BATCH_S):
                await self._ending.wait()
        except TimeoutError:
            return

    async def _store_group(self, first: int, events: bytes, usage: TokenUsage | None) -> bool:
        """False: the response is stored no more."""
        group = EventGroup(first, self._shape.number, events)
        result = await self._write(EventWrite(self._tenant_id, self._response_id, group, self._checkpoint(usage)))
        if result in ("gone", "lost"):
            await self._leave(result)
            return False
        if result == "cancelled":
            self.cancel()
        return True

    async def _store_end(self, first: int, events: bytes) -> None:
        answer, shape = self._answer, self._shape
        usage, error = self._end or (answer.usage, answer.error)
        if error is None:
            events += shape.closing(answer)
        else:
            events += shape.failure(error, usage)
        status, response = status_of(answer, error), shape.response
        end = ResponseEnd(status, response, self._added_items(status, response))
        group = EventGroup(first, shape.number, events)
        checkpoint = self._checkpoint(usage)
        result = await self._write(EventWrite(self._tenant_id, self._response_id, group, checkpoint, end))
        if result in ("gone", "lost"):
            await self._leave(result)

    async def _leave(self, result: WriteResult) -> None:
        """The row was deleted, or this gateway was taken for dead: nothing more is stored."""
        _log.info("background.left", extra={"fields": {"response": self._response_id, "reason": result}})
        self.abandon()
        if result == "lost":
            await self._retried(self._store.end_lost(self._response_id))

    def _checkpoint(self, usage: TokenUsage | None) -> Checkpoint | None:
        if usage is None or not usage.completion:
            return None
        return Checkpoint(self._request_id, usage.prompt, usage.cached, usage.completion, usage.engines)

    async def _write(self, write: EventWrite) -> WriteResult:
        while True:
            try:
                return await self._store.write_events(write)
            except DatabaseUnavailable as error:
                fields = {"response": self._response_id, "reason": str(error)}
                _log.warning("background.not_written", extra={"fields": fields})
                await asyncio.sleep(RETRY_S)
                write = msgspec.structs.replace(write, repeated=True)  # it may have been committed

    async def _retried(self, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except DatabaseUnavailable as error:
            _log.error("background.not_ended", extra={"fields": {"response": self._response_id, "reason": str(error)}})


class Recordings:
    """The responses in the background that this process makes."""

    def __init__(self, store: BackgroundStore) -> None:
        self._store = store
        self._running: dict[str, tuple[ResponseRecorder, asyncio.Task[None]]] = {}

    def start(self, response_id: str, recorder: ResponseRecorder) -> None:
        task = asyncio.create_task(recorder.run(), name=response_id)
        self._running[response_id] = recorder, task
        task.add_done_callback(lambda _task: self._running.pop(response_id, None))

    def cancel_response(self, response_id: str) -> bool:
        """False: this process does not make it."""
        if response_id not in self._running:
            return False
        self._running[response_id][0].cancel()
        return True

    async def run(self) -> None:
        """Run until cancelled: end the responses that clients cancelled at other gateways."""
        while True:
            await asyncio.sleep(POLL_S)
            if not self._running:
                continue
            try:
                for response_id in await self._store.cancelled_ids():
                    self.cancel_response(response_id)
            except DatabaseUnavailable as error:
                _log.warning("background.cancels_unread", extra={"fields": {"reason": str(error)}})

    async def close(self, patience_s: float) -> None:
        """Wait at most `patience_s` for the last groups. Responses without their end are ended by another gateway."""
        tasks = [task for _recorder, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def follow_events(
    store: BackgroundStore, tenant_id: str, response_id: str, after: int, events: list[bytes] | None
) -> AsyncIterator[list[bytes]]:
    """Yields the stored events of a response whose numbers are above `after`, until the response has ended. After each
    POLL_S without a new event it yields an empty list. `events`: the first events, if the caller has read them already.
    Raises DatabaseUnavailable."""
    while True:
        changed = store.change_of(response_id)
        if events:
            after += len(events)
            yield events
        state = await store.read_response(tenant_id, response_id, after)
        if state is None or state.events is None:  # deleted or expired meanwhile
            return
        events = state.events
        if events:
            continue
        if state.has_ended:
            return
        try:
            async with asyncio.timeout(POLL_S):
                await changed.wait()
        except TimeoutError:
            yield []


class FollowedResponse:
    """ASGI application: the stored events of a response from a number on, as server-sent events, until its end."""

    def __init__(
        self,
        store: BackgroundStore,
        tenant_id: str,
        response_id: str,
        *,
        after: int,
        events: list[bytes] | None = None,
        headers: list[tuple[bytes, bytes]],
        keep_alive_s: float,
        on_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`on_end` is awaited when the exchange has ended."""
        self._followed = follow_events(store, tenant_id, response_id, after, events)
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = asyncio.create_task(self._stream(send))
        leaving = asyncio.create_task(_wait_disconnect(receive))
        try:
            await asyncio.wait((streaming, leaving), return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        finally:
            for task in (streaming, leaving):
                task.cancel()
            await asyncio.gather(streaming, leaving, return_exceptions=True)
            if self._on_end is not None:
                await self._on_end()

    async def _stream(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *self._headers]})
        sent_at = loop.time()
        try:
            async for events in self._followed:
                body = b"".join(events)
                if not body and loop.time() - sent_at >= self._keep_alive_s:
                    body = KEEP_ALIVE
                if body:
                    sent_at = loop.time()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except DatabaseUnavailable as error:  # the client may continue with `starting_after`
            _log.warning("background.not_read", extra={"fields": {"reason": str(error)}})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
