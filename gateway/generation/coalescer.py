"""Coalesces items into transactions: the items submitted while one transaction is in flight share the next one.

The ledger, its settler and the limits in Redis have loops of their own, whose docstrings give the differences.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class TooManyWaiting(Exception):
    """`waiting_max` items wait already."""


class Coalescer(Generic[Item, Answer]):
    """Of one event loop. One transaction is in flight at a time; it has at most `group_max` items."""

    def __init__(
        self,
        transact: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        group_max: int,
        waiting_max: int,
    ) -> None:
        """`transact` returns one answer or one exception for each item; an exception that it raises is that of all."""
        self._transact = transact
        self._group_max = group_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._drain_task: asyncio.Task[None] | None = None

    def submit(self, asked: Item) -> asyncio.Future[Answer]:
        """An item whose future is cancelled before its transaction begins is left out. Raises TooManyWaiting."""
        if len(self._waiting) >= self._waiting_max:
            raise TooManyWaiting(f"{self._waiting_max} wait already")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # a caller that gave up does not retrieve it
        self._waiting.append((asked, answer))
        if self._drain_task is None:
            self._drain_task = loop.create_task(self._drain(), name="grouping")
        return answer

    async def _drain(self) -> None:
        group: list[tuple[Item, asyncio.Future[Answer]]] = []
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(self._group_max, len(self._waiting)))]
                group = [(asked, answer) for asked, answer in taken if not answer.done()]
                if group:
                    await self._answer(group)
        finally:
            self._drain_task = None
            for _asked, answer in group:  # cancelled during a transaction: the process stops
                answer.cancel()

    async def _answer(self, group: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        results: Sequence[Answer | Exception]
        try:
            results = await self._transact([asked for asked, _answer in group])
        except Exception as error:  # noqa: BLE001 - raised again at each of the waiters
            results = [error] * len(group)
        for (_asked, answer), result in zip(group, results, strict=True):
            if answer.done():
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
