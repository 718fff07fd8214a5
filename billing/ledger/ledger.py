"""The gateway's side of the ledger: hold before the engine gets a request, settle or void after it, exactly once.

Holds and endings that arrive while a commit is in flight share the next transaction. It knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import sqlalchemy as sa

from billing.accounts.prices import PriceBook
from billing.clock import Clock, database_now
from billing.database import Database, DatabaseUnavailable
from billing.ledger.leases import LEASE_S
from billing.ledger.messages import Ending, Held, HoldEnding, HoldMove, HoldRefused, HoldRequest, Settlement, Void
from billing.ledger.transaction import EndResult, HoldEnded, HoldResult, HoldUnknown, LedgerTransaction, RequestIdReused

__all__ = [
    "Held",
    "HoldEnded",
    "HoldEnding",
    "HoldRefused",
    "HoldRequest",
    "HoldUnknown",
    "Ledger",
    "LedgerUnavailable",
    "RequestIdReused",
    "Settlement",
]

GROUP_MAX = 256
# Under load, transactions start INTERVAL_S apart: a transaction of one request costs nearly as much CPU as one of
# eight, so fewer of them collect more requests. A burst of BURST_TRANSACTIONS starts without delay. Endings alone wait
# for the next hold, or for the interval: that delays the end of an answer, never its first streamed token.
INTERVAL_S = 1 / 80
BURST_TRANSACTIONS = 8
HOLDS_WAITING_MAX = 10_000
SETTLE_PATIENCE_S = 30.0
CLOSE_PATIENCE_S = 3.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 2.0

_log = logging.getLogger("laneway.billing")

Answer = TypeVar("Answer")


class LedgerUnavailable(Exception):
    """The database is unavailable, or too many holds wait for it. For a hold: nothing is held, or the hold that may
    have been committed is voided later. For an ending: it was not recorded, and may be tried again."""


@dataclass(slots=True, eq=False)
class _HoldItem:
    asked: HoldRequest | HoldMove
    waiter: asyncio.Future[Held | HoldRefused]


@dataclass(slots=True, eq=False)
class _EndItem:
    asked: Ending
    waiter: asyncio.Future[HoldEnding] | None  # None: the ledger's own, repeated until it succeeds
    since: float = field(default_factory=time.monotonic)


def _answer(waiter: asyncio.Future[Answer] | None, result: Answer | Exception) -> None:
    if waiter is None or waiter.done():
        return
    if isinstance(result, Exception):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)


def _answered(waiter: asyncio.Future[Answer] | None) -> bool:
    return waiter is not None and waiter.done() and not waiter.cancelled()


class Ledger:
    """One per gateway process and event loop. `gateway_id` is unique per process; its holds last while its lease lives.

    Not a Coalescer: it paces transactions, takes holds and endings from two queues, and retries endings."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        *,
        clock: Clock = database_now,
        lease_s: float = LEASE_S,
        settle_patience_s: float = SETTLE_PATIENCE_S,
    ) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._clock = clock
        self._lease_s = lease_s
        self._settle_patience_s = settle_patience_s
        self._prices = PriceBook()  # used in the writer thread alone
        self._holds: deque[_HoldItem] = deque()
        self._endings: deque[_EndItem] = deque()
        self._drain_task: asyncio.Task[None] | None = None
        self._endings_timer: asyncio.TimerHandle | None = None  # armed while endings wait and nothing drains
        self._closing = False
        # By the loop's clock: when the next transaction may start, and when one without holds.
        self._next_at = self._endings_at = -math.inf
        self.away: str | None = None  # why the last commit failed, while the database is away
        self.commits = 0
        self.requests = 0

    async def hold(self, request: HoldRequest) -> Held | HoldRefused:
        """Reserve what the request may cost; the hold is committed when this returns. A call with the id of an open
        hold returns that hold. A caller that is cancelled meanwhile leaves no hold behind.
        Raises LedgerUnavailable; RequestIdReused when the id has ended."""
        request.check()
        return await self._reserve(request)

    async def move(self, request: HoldRequest) -> Held | HoldRefused:
        """Move the open hold with this request's id to another model, adapter or size, at the price in force now; the
        move is committed when this returns. A refused move leaves the hold as it was, and the caller voids it; a move
        to what the hold has already changes nothing. Raises HoldUnknown, HoldEnded, and LedgerUnavailable, after
        which the hold may have been moved or not."""
        request.check()
        return await self._reserve(HoldMove(request))

    async def _reserve(self, asked: HoldRequest | HoldMove) -> Held | HoldRefused:
        if self.away is not None:
            raise LedgerUnavailable(self.away)
        if len(self._holds) >= HOLDS_WAITING_MAX:
            raise LedgerUnavailable(f"{HOLDS_WAITING_MAX} holds wait already")
        waiter: asyncio.Future[Held | HoldRefused] = asyncio.get_running_loop().create_future()
        self._holds.append(_HoldItem(asked, waiter))
        self._start()
        try:
            return await waiter
        except asyncio.CancelledError:
            if _answered(waiter) and waiter.exception() is None and isinstance(waiter.result(), Held):
                # Cancelled between the commit and the answer: `_commit` saw a waiter that was not cancelled.
                self._endings.append(_EndItem(Void(asked.request_id, "caller_gone"), None))
                self._start_for_endings()
            raise

    async def settle(self, settlement: Settlement) -> HoldEnding:
        """Write usage and ledger entries and end the hold, in one transaction. A repeated call changes nothing and gets
        the first answer. Retried for `settle_patience_s` while the database is unavailable, then LedgerUnavailable.
        Raises HoldUnknown, and AssertionError when more was used than held."""
        settlement.check()
        return await self._end_hold(settlement)

    async def void(self, request_id: str, reason: str) -> HoldEnding:
        """End the hold of a request that made nothing. Idempotent; the ending of an unknown id is "unknown"."""
        return await self._end_hold(Void(request_id, reason))

    async def close(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Wait until all holds and endings are answered; after `patience_s` the others raise LedgerUnavailable."""
        self._closing = True
        if self._endings:
            self._start()
        if self._drain_task is None:
            return
        _done, late = await asyncio.wait([self._drain_task], timeout=patience_s)
        for task in late:
            task.cancel()
            await asyncio.wait([task])
        if self._endings_timer is not None:
            self._endings_timer.cancel()
            self._endings_timer = None
        closed = LedgerUnavailable("the ledger is closed")
        while self._holds:
            _answer(self._holds.popleft().waiter, closed)
        while self._endings:
            _answer(self._endings.popleft().waiter, closed)

    async def _end_hold(self, ending: Ending) -> HoldEnding:
        waiter: asyncio.Future[HoldEnding] = asyncio.get_running_loop().create_future()
        self._endings.append(_EndItem(ending, waiter))
        self._start_for_endings()
        return await waiter

    def _start(self) -> None:
        if self._endings_timer is not None:
            self._endings_timer.cancel()
            self._endings_timer = None
        if self._drain_task is None:
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(), name="ledger")

    def _start_for_endings(self) -> None:
        """Start at once if the last transaction started INTERVAL_S ago; otherwise set a timer for that moment."""
        if self._drain_task is None and self._endings_timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._endings_at:
                self._start()
            else:
                self._endings_timer = loop.call_at(self._endings_at, self._start)

    async def _drain(self) -> None:
        backoff_s = BACKOFF_MIN_S
        holds: list[_HoldItem] = []
        endings: list[_EndItem] = []
        try:
            loop = asyncio.get_running_loop()
            while self._holds or self._endings:
                if (wait_s := self._next_at - loop.time()) > 0:
                    holds, endings = [], []  # the last transaction's are answered: a cancellation must not queue them
                    await asyncio.sleep(wait_s)
                now = loop.time()
                self._next_at = max(self._next_at, now - (BURST_TRANSACTIONS - 1) * INTERVAL_S) + INTERVAL_S
                self._endings_at = now + INTERVAL_S
                endings = [self._endings.popleft() for _ in range(min(GROUP_MAX, len(self._endings)))]
                holds = [self._holds.popleft() for _ in range(min(GROUP_MAX, len(self._holds)))]
                holds = [item for item in holds if not item.waiter.cancelled()]
                try:
                    await self._commit(holds, endings)
                    self.away, backoff_s = None, BACKOFF_MIN_S
                except DatabaseUnavailable as error:
                    self._unavailable(holds, endings, error)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
                written = self.away is None
                if written and not self._holds and not self._closing and loop.time() < self._endings_at:
                    break
            if self._endings:
                self._endings_timer = loop.call_at(self._endings_at, self._start)
        except asyncio.CancelledError:  # `close` timed out, and answers them
            self._holds.extendleft(reversed(holds))
            self._endings.extendleft(reversed(endings))
            raise
        finally:
            self._drain_task, self.away = None, None

    async def _commit(self, holds: list[_HoldItem], endings: list[_EndItem]) -> None:
        """One transaction, tried a second time at once, since a connection may have died idle. Repeats are harmless."""
        if not holds and not endings:
            return
        asked = [item.asked for item in holds], [item.asked for item in endings]
        try:
            try:
                results = await self._transact(*asked)
            except DatabaseUnavailable:
                results = await self._transact(*asked)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised again at the waiter of the request at fault
            await self._alone(holds, endings, error)
            return
        for hold, held in zip(holds, results[0], strict=True):
            _answer(hold.waiter, held)
            if hold.waiter.cancelled() and isinstance(held, Held):
                self._endings.append(_EndItem(Void(held.request_id, "caller_gone"), None))
        for ending, ended in zip(endings, results[1], strict=True):
            _answer(ending.waiter, ended)

    async def _transact(
        self, holds: Sequence[HoldRequest | HoldMove], endings: Sequence[Ending]
    ) -> tuple[list[HoldResult], list[EndResult]]:
        def run(connection: sa.Connection) -> tuple[list[HoldResult], list[EndResult]]:
            group = LedgerTransaction(self._gateway_id, self._lease_s, self._clock, self._prices)
            return group.run(connection, holds, endings)

        results = await self._database.write(run)
        self.commits += 1
        self.requests += len(holds) + len(endings)
        return results

    async def _alone(self, holds: list[_HoldItem], endings: list[_EndItem], error: Exception) -> None:
        """Write each item in a transaction of its own, since an item of the group cannot be written at all."""
        if len(holds) + len(endings) == 1:
            for hold in holds:
                _log.error("ledger: %r failed: %r", hold.asked, error)
                _answer(hold.waiter, error)
            for ending in endings:
                _log.error("ledger: %r failed: %r", ending.asked, error)
                _answer(ending.waiter, error)
            return
        for hold in holds:
            await self._commit([hold], [])
        for ending in endings:
            await self._commit([], [ending])

    def _unavailable(self, holds: list[_HoldItem], endings: list[_EndItem], error: DatabaseUnavailable) -> None:
        """Fail holds at once; holds of this transaction are voided later, since it may have been committed. Put endings
        back to the front of the queue, unless they have waited for `settle_patience_s`."""
        _log.warning("ledger: %d holds and %d endings not written: %s", len(holds), len(endings), error)
        self.away = str(error)
        for hold in holds:
            if not _answered(hold.waiter):
                _answer(hold.waiter, LedgerUnavailable(self.away))
                self._endings.append(_EndItem(Void(hold.asked.request_id, "ledger_unavailable"), None))
        while self._holds:
            _answer(self._holds.popleft().waiter, LedgerUnavailable(self.away))
        for ending in reversed(endings):
            if _answered(ending.waiter):
                continue
            if ending.waiter is None or time.monotonic() - ending.since <= self._settle_patience_s:
                self._endings.appendleft(ending)
            else:
                _answer(ending.waiter, LedgerUnavailable(self.away))
