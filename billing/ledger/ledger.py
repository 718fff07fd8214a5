"""The ledger as a gateway uses it: a hold before the engine receives a request, then one settlement or void.

Calls that arrive while a transaction is in flight share the next transaction. This module knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
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

GROUP_MAX = 256  # holds, and as many endings, of one transaction
# Under load, transactions start INTERVAL_S apart: a transaction of one request costs nearly as much CPU as one of
# eight, so fewer transactions with more requests each are cheaper. A burst of BURST_TRANSACTIONS starts without delay.
# A transaction without holds waits for the next hold, at most until the interval is over: that delays the end of an
# answer, not its first token.
INTERVAL_S = 1 / 80
BURST_TRANSACTIONS = 8
# Nobody waits for the first token of a batch's line: transactions of lines alone start LINES_INTERVAL_S apart, and do
# not count to BURST_TRANSACTIONS. A caller's hold waits for the transaction in flight, so these are few.
LINES_INTERVAL_S = 1 / 40
HOLDS_WAITING_MAX = 10_000
CLOSE_PATIENCE_S = 3.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 2.0  # between transactions while the database is unavailable

_log = logging.getLogger("laneway.billing")

Answer = TypeVar("Answer")


class LedgerUnavailable(Exception):
    """The database is unavailable, or too many holds wait for it. A hold that may have been committed is voided later.
    An ending was not recorded, or the database's answer was lost; the caller may repeat it."""


@dataclass(slots=True, eq=False)
class _HoldItem:
    request: HoldRequest | HoldMove
    waiter: asyncio.Future[Held | HoldRefused]


@dataclass(slots=True, eq=False)
class _EndItem:
    ending: Ending
    waiter: asyncio.Future[HoldEnding] | None  # None: one of the ledger's own voids, repeated until it succeeds


@dataclass(slots=True, eq=False)
class _Waiting:
    """The holds and the endings that wait for a transaction, each in the order of arrival."""

    holds: deque[_HoldItem] = field(default_factory=deque)
    endings: deque[_EndItem] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.holds or self.endings)

    def put_back(self, holds: list[_HoldItem], endings: list[_EndItem]) -> None:
        """At the front."""
        self.holds.extendleft(reversed(holds))
        self.endings.extendleft(reversed(endings))


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
    """One per gateway process and event loop. `gateway_id` is unique per process: holds belong to this gateway while
    its lease is valid.

    It is a coalescer with a separate loop, because it differs from `billing.coalescer` in four ways: a transaction
    takes from several queues; transactions have a minimum interval, and endings and batches' lines wait for it; an
    ending is recorded even if its caller was cancelled; and when the database is unavailable, all holds fail at once,
    while the ledger's own voids are repeated."""

    def __init__(
        self,
        database: Database,
        gateway_id: str,
        *,
        clock: Clock = database_now,
        lease_s: float = LEASE_S,
    ) -> None:
        self._database = database
        self._gateway_id = gateway_id
        self._clock = clock
        self._lease_s = lease_s
        self._prices = PriceBook()  # used only in the writer thread
        self._callers = _Waiting()  # with the ledger's own voids
        self._lines = _Waiting()  # of batches
        self._drain_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # set while endings or lines wait and no transaction runs
        self._closing = False
        # By the loop's clock: when the next transaction with a caller's hold may start, and when the last one started.
        self._next_at = self._began_at = -math.inf
        self.away: str | None = None  # the last commit's error, while the database is unavailable

    async def hold(self, request: HoldRequest, *, is_line: bool = False) -> Held | HoldRefused:
        """Reserve the most that the request may cost. When this returns, the hold is committed. A repeated call with
        the id of an open hold gives the same answer. If the caller is cancelled meanwhile, the hold is voided.
        `is_line`: the request is a line of a batch, so its hold waits for a transaction as endings do. Raises
        LedgerUnavailable; RequestIdReused if the hold with this id has ended."""
        request.check()
        return await self._reserve(request, is_line=is_line)

    async def move(self, request: HoldRequest) -> Held | HoldRefused:
        """Replace the open hold with this request's id by a hold for another model, adapter or size, at the price that
        is in force now; when this returns, the move is committed. If the move is refused, or the hold is for
        this model already, the hold is unchanged; the caller must void a hold that it does not use. Raises HoldUnknown,
        HoldEnded; LedgerUnavailable, after which the hold may be the old or the new one."""
        request.check()
        return await self._reserve(HoldMove(request))

    async def _reserve(self, request: HoldRequest | HoldMove, *, is_line: bool = False) -> Held | HoldRefused:
        if self.away is not None:
            raise LedgerUnavailable(self.away)
        waiting = self._lines if is_line else self._callers
        if len(waiting.holds) >= HOLDS_WAITING_MAX:
            raise LedgerUnavailable(f"{HOLDS_WAITING_MAX} holds wait already")
        waiter: asyncio.Future[Held | HoldRefused] = asyncio.get_running_loop().create_future()
        waiting.holds.append(_HoldItem(request, waiter))
        if is_line:
            self._start_later(LINES_INTERVAL_S)
        else:
            self._start()
        try:
            return await waiter
        except asyncio.CancelledError:
            if _answered(waiter) and waiter.exception() is None and isinstance(waiter.result(), Held):
                # The caller was cancelled between `_commit`'s answer and its own next turn, so `_commit` could not
                # void.
                self._callers.endings.append(_EndItem(Void(request.request_id, "caller_gone"), None))
                self._start_later(INTERVAL_S)
            raise

    async def settle(self, settlement: Settlement) -> HoldEnding:
        """Write usage and entries and end the hold, in one transaction. A repeated call changes nothing and
        gives the first answer. Raises LedgerUnavailable, HoldUnknown, and AssertionError if more was used than held."""
        settlement.check()
        return await self._end_hold(settlement, is_line=settlement.batch_id is not None)

    async def void(self, request_id: str, reason: str) -> HoldEnding:
        """End the hold of a request that made no tokens. Idempotent; the outcome for an unknown id is "unknown"."""
        return await self._end_hold(Void(request_id, reason))

    async def close(self, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Wait until all calls are answered; calls that are still open after `patience_s` raise LedgerUnavailable."""
        self._closing = True
        if self._callers or self._lines:
            self._start()
        if self._drain_task is None:
            return
        _done, late = await asyncio.wait([self._drain_task], timeout=patience_s)
        for task in late:
            task.cancel()
            await asyncio.wait([task])
        self._stop_timer()
        closed = LedgerUnavailable("the ledger is closed")
        for waiting in (self._callers, self._lines):
            while waiting.holds:
                _answer(waiting.holds.popleft().waiter, closed)
            while waiting.endings:
                _answer(waiting.endings.popleft().waiter, closed)

    async def _end_hold(self, ending: Ending, *, is_line: bool = False) -> HoldEnding:
        waiter: asyncio.Future[HoldEnding] = asyncio.get_running_loop().create_future()
        (self._lines if is_line else self._callers).endings.append(_EndItem(ending, waiter))
        self._start_later(LINES_INTERVAL_S if is_line else INTERVAL_S)
        return await waiter

    def _start(self) -> None:
        self._stop_timer()
        if self._drain_task is None:
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(), name="ledger")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_later(self, interval_s: float) -> None:
        """Start at once if the last transaction started `interval_s` ago; otherwise at that moment, or earlier if an
        earlier start is set."""
        if self._drain_task is not None:
            return
        loop, at = asyncio.get_running_loop(), self._began_at + interval_s
        if loop.time() >= at:
            self._start()
        elif self._timer is None or at < self._timer.when():
            self._stop_timer()
            self._timer = loop.call_at(at, self._start)

    async def _drain(self) -> None:
        backoff_s = BACKOFF_MIN_S
        taken: list[tuple[_Waiting, list[_HoldItem], list[_EndItem]]] = []
        try:
            loop = asyncio.get_running_loop()
            while self._callers or self._lines:
                if self._callers.holds and (wait_s := self._next_at - loop.time()) > 0:
                    taken = []  # answered: a cancelled task must not queue them again
                    await asyncio.sleep(wait_s)
                self._began_at = now = loop.time()
                if self._callers.holds:
                    self._next_at = max(self._next_at, now - (BURST_TRANSACTIONS - 1) * INTERVAL_S) + INTERVAL_S
                taken = self._take()
                holds = [item for _, some, _ in taken for item in some]
                endings = [item for _, _, some in taken for item in some]
                try:
                    await self._commit(holds, endings)
                    self.away, backoff_s = None, BACKOFF_MIN_S
                except DatabaseUnavailable as error:
                    self._unavailable(holds, endings, error)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
                written = self.away is None
                if written and not self._callers.holds and not self._closing and loop.time() < self._rest_at():
                    break
            if self._callers or self._lines:
                self._timer = loop.call_at(self._rest_at(), self._start)
        except asyncio.CancelledError:  # by `close` after `patience_s`; `close` answers them
            for waiting, some_holds, some_endings in taken:
                waiting.put_back(some_holds, some_endings)
            raise
        finally:
            self._drain_task, self.away = None, None

    def _take(self) -> list[tuple[_Waiting, list[_HoldItem], list[_EndItem]]]:
        """The items of the next transaction, by where they waited: callers' first, and at most GROUP_MAX of a kind."""
        taken = []
        holds_left = endings_left = GROUP_MAX
        for waiting in (self._callers, self._lines):
            endings = [waiting.endings.popleft() for _ in range(min(endings_left, len(waiting.endings)))]
            holds = [waiting.holds.popleft() for _ in range(min(holds_left, len(waiting.holds)))]
            holds_left, endings_left = holds_left - len(holds), endings_left - len(endings)
            taken.append((waiting, [item for item in holds if not item.waiter.cancelled()], endings))
        return taken

    def _rest_at(self) -> float:
        """When the next transaction without a caller's hold starts."""
        return self._began_at + (INTERVAL_S if self._callers.endings else LINES_INTERVAL_S)

    async def _commit(self, holds: list[_HoldItem], endings: list[_EndItem]) -> None:
        """Run one transaction. It is retried once, since a connection may have died while it was idle. A repeat is
        safe."""
        if not holds and not endings:
            return
        requests = [item.request for item in holds], [item.ending for item in endings]
        try:
            try:
                results = await self._transact(*requests)
            except DatabaseUnavailable:
                results = await self._transact(*requests)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised again at the waiter of its request
            await self._commit_singly(holds, endings, error)
            return
        for hold, held in zip(holds, results[0], strict=True):
            _answer(hold.waiter, held)
            if hold.waiter.cancelled() and isinstance(held, Held):
                self._callers.endings.append(_EndItem(Void(held.request_id, "caller_gone"), None))
        for ending, ended in zip(endings, results[1], strict=True):
            _answer(ending.waiter, ended)

    async def _transact(
        self, holds: Sequence[HoldRequest | HoldMove], endings: Sequence[Ending]
    ) -> tuple[list[HoldResult], list[EndResult]]:
        def run(connection: sa.Connection) -> tuple[list[HoldResult], list[EndResult]]:
            group = LedgerTransaction(self._gateway_id, self._lease_s, self._clock, self._prices)
            return group.run(connection, holds, endings)

        return await self._database.write(run)

    async def _commit_singly(self, holds: list[_HoldItem], endings: list[_EndItem], error: Exception) -> None:
        """Commit each item alone, after one item of the transaction raised `error`, so that only that item fails."""
        if len(holds) + len(endings) == 1:
            for hold in holds:
                _log.error("ledger: %r failed: %r", hold.request, error)
                _answer(hold.waiter, error)
            for ending in endings:
                _log.error("ledger: %r failed: %r", ending.ending, error)
                _answer(ending.waiter, error)
            return
        for hold in holds:
            await self._commit([hold], [])
        for ending in endings:
            await self._commit([], [ending])

    def _unavailable(self, holds: list[_HoldItem], endings: list[_EndItem], error: DatabaseUnavailable) -> None:
        """Fail all waiting calls. Holds of the failed transaction are voided later, because their commit may have taken
        place. The ledger's own voids are queued again, at the front."""
        _log.warning("ledger: %d holds and %d endings not written: %s", len(holds), len(endings), error)
        self.away = str(error)
        for hold in holds:
            if not _answered(hold.waiter):
                _answer(hold.waiter, LedgerUnavailable(self.away))
                self._callers.endings.append(_EndItem(Void(hold.request.request_id, "ledger_unavailable"), None))
        for waiting in (self._callers, self._lines):
            while waiting.holds:
                _answer(waiting.holds.popleft().waiter, LedgerUnavailable(self.away))
        for ending in reversed(endings):
            if ending.waiter is None:
                self._callers.endings.appendleft(ending)
            elif not _answered(ending.waiter):
                _answer(ending.waiter, LedgerUnavailable(self.away))
