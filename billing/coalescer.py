"""Coalesces items into batches: the items submitted while one batch is in flight share the next one.

It knows no SQL, no file and no server: `run_batch` does the work. `billing.ledger.ledger` has a separate loop, for the
reasons in its docstring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class TooManyWaiting(Exception):
    """The backlog has `backlog_max` items."""


class Coalescer(Generic[Item, Answer]):
    """For use in one event loop. One batch is in flight at a time, so items take effect in the order of their
    submission."""

    def __init__(
        self,
        run_batch: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        name: str,
        batch_max: int,
        backlog_max: int | None = None,
    ) -> None:
        """`run_batch` gets 1 to `batch_max` items and returns one answer or one exception for each; an exception that
        it raises is the answer to all of them. `name`: the name of the asyncio task. Without `backlog_max` the backlog
        has no bound."""
        self._run_batch = run_batch
        self._name = name
        self._batch_max = batch_max
        self._backlog_max = backlog_max
        self._backlog: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stop_error: Exception | None = None

    def submit(self, item: Item) -> asyncio.Future[Answer]:
        """Add an item to the backlog; the future gets its answer. If the future is cancelled before the item's batch
        begins, the item does not run; if later, the item runs and its answer is dropped. Raises TooManyWaiting."""
        if self._backlog_max is not None and len(self._backlog) >= self._backlog_max:
            raise TooManyWaiting(f"the backlog has its maximum of {self._backlog_max} items")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Answer] = loop.create_future()
        waiter.add_done_callback(_retrieve)
        self._backlog.append((item, waiter))
        if self._task is None:
            self._task = loop.create_task(self._run_batches(), name=self._name)
        return waiter

    def fail_backlog(self, error: Exception) -> None:
        """Answer all items that wait for a batch with `error`; the batch in flight continues."""
        while self._backlog:
            _answer(self._backlog.popleft()[1], error)

    async def wait_idle(self) -> None:
        """Wait until no item waits and no batch is in flight."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self, error: Exception) -> None:
        """Cancel the batch in flight; its items and the backlog are answered with `error`. Submit nothing after it."""
        self._stop_error = error
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.fail_backlog(error)

    async def _run_batches(self) -> None:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while self._backlog:
                oldest = [self._backlog.popleft() for _ in range(min(self._batch_max, len(self._backlog)))]
                batch = [(item, waiter) for item, waiter in oldest if not waiter.done()]
                if batch:
                    await self._answer_batch(batch)
        finally:
            self._task = None
            for _item, waiter in batch:  # still unanswered only if this task is cancelled
                if self._stop_error is None:
                    waiter.cancel()
                else:
                    _answer(waiter, self._stop_error)

    async def _answer_batch(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        results: Sequence[Answer | Exception]
        try:
            results = await self._run_batch([item for item, _waiter in batch])
        except Exception as error:  # noqa: BLE001 - raised again at each of the waiters
            results = [error] * len(batch)
        for (_item, waiter), result in zip(batch, results, strict=True):
            _answer(waiter, result)


def _answer(waiter: asyncio.Future[Answer], result: Answer | Exception) -> None:
    if waiter.done():
        return
    if isinstance(result, Exception):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)


def _retrieve(waiter: asyncio.Future[Any]) -> None:
    """A caller that gave up does not retrieve the exception; asyncio would log that."""
    if not waiter.cancelled():
        waiter.exception()
