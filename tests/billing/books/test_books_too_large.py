"""Sums that no 64 bits hold: the books say so, and what does not depend on them goes on."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from billing.accounts import prices
from billing.accounts.prices import REQUEST_TOKENS_MAX, UNIT_PRICE_PICOS_MAX
from billing.books import corrections
from billing.books.corrections import PERIOD_PICOS_MAX
from billing.errors import InvalidValue
from gateway.upkeep.bookkeeper import Bookkeeper
from support.billing.books import Books
from support.billing.finance import at, close, fold, use
from support.waiting import eventually_async

JANUARY, FEBRUARY = at("2031-01-15T12:00"), at("2031-02-15T12:00")


class Gauge:
    """What the bookkeeper needs of a metric."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def inc(self) -> None:
        self.value += 1


async def test_an_hour_that_no_column_holds_does_not_end_the_bookkeeper(books: Books) -> None:
    books.database.write_sync(
        lambda c: prices.publish(
            c,
            subject="gold",
            input=UNIT_PRICE_PICOS_MAX,
            cached_input=0,
            output=0,
            multipliers={"standard": 1},
        )
    )
    for _ in range(6):
        use(books, JANUARY, model="gold", prompt=REQUEST_TOKENS_MAX - 1, made=1)
    metrics: Any = SimpleNamespace(**{name: Gauge() for name in ("errors", "imbalances", "overshoot", "reconciled_at")})
    engine: Any = None  # it is not asked before the usage is folded
    keeper = Bookkeeper(books.database, engine, metrics, every_s=0.05)
    task = asyncio.create_task(keeper.run())
    await eventually_async(lambda: task.done() or metrics.imbalances.value == 1)
    await asyncio.sleep(0.3)
    assert not task.done(), task
    assert metrics.imbalances.value == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_corrections_that_no_invoice_could_hold_are_refused(books: Books) -> None:
    """Otherwise the month could never be closed: what is over takes no correction any more."""

    def charge(picos: int) -> None:
        books.database.write_sync(
            lambda c: corrections.correct_tenant(
                c, books.tenant.id, picos=picos, reason="r", actor="me", clock=lambda _connection: JANUARY
            )
        )

    use(books, JANUARY)
    charge(PERIOD_PICOS_MAX - 10**6)
    with pytest.raises(InvalidValue, match="the period's corrections are"):
        charge(10**6 + 1)
    charge(-(10**6))
    fold(books, JANUARY)
    assert close(books, "2031-01", FEBRUARY).total_picos > 0
