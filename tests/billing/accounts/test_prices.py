"""Integer prices for each meter and tier: refused when not integral, never changed, in force from a moment on."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from billing import clock, revision
from billing.accounts import prices
from billing.accounts.prices import PICOS_MAX, REQUEST_TOKENS_MAX, UNIT_PRICE_PICOS_MAX, UnitPrices, format_picos
from billing.errors import AlreadyExists, InvalidValue
from billing.ledger.ledger import Held, HoldRefused, Ledger
from support.billing.books import Books

GOOD: dict[str, Any] = {
    "subject": "model-b",
    "input": 100,
    "cached_input": 10,
    "output": 400,
    "multipliers": {"standard": 1},
}


def publish(books: Books, **changes: Any) -> prices.PriceVersion:
    return books.database.write_sync(lambda connection: prices.publish(connection, **(GOOD | changes)))


def test_multipliers_are_applied_when_published(books: Books) -> None:
    version = publish(books, multipliers={"premium": "3", "standard": 1, "batch": "0.5", "odd": Fraction(3, 10)})
    assert version.tiers == {
        "premium": UnitPrices(300, 30, 1200, 300),
        "standard": UnitPrices(100, 10, 400, 100),
        "batch": UnitPrices(50, 5, 200, 50),
        "odd": UnitPrices(30, 3, 120, 30),
    }
    assert books.database.read_sync(lambda connection: prices.list_price_versions(connection, subject="model-b")) == [
        version
    ]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": 101, "multipliers": {"batch": "0.5"}}, "input"),
        ({"multipliers": {"standard": Fraction(1, 3)}}, "input"),
        ({"output": 1, "multipliers": {"batch": "0.5"}}, "output"),
        ({"multipliers": {"standard": "a third"}}, "multipliers"),
        ({"multipliers": {"standard": "1/0"}}, "multipliers"),
        ({"multipliers": {"standard": -1}}, "input"),
        ({"multipliers": {}}, "multipliers"),
        ({"output": UNIT_PRICE_PICOS_MAX + 1}, "output"),
        ({"cached_input": 101}, "cached_input"),
        ({"input": -1, "cached_input": -1}, "input"),
        ({"subject": ""}, "subject"),
        ({"currency": "usd"}, "currency"),
        ({"effective_from": 1}, "effective_from"),
    ],
)
def test_refused_and_nothing_written(books: Books, changes: dict[str, Any], param: str) -> None:
    before = books.database.read_sync(revision.read_revision)
    with pytest.raises(InvalidValue) as refused:
        publish(books, **changes)
    assert refused.value.param == param
    assert books.database.read_sync(lambda connection: prices.list_price_versions(connection, subject="model-b")) == []
    assert books.database.read_sync(revision.read_revision) == before


def test_one_version_per_moment(books: Books) -> None:
    soon = books.database.read_sync(clock.database_now) + clock.DAY
    publish(books, effective_from=soon)
    with pytest.raises(AlreadyExists):
        publish(books, effective_from=soon)
    publish(books, effective_from=soon, currency="EUR")


async def test_a_future_version_comes_into_force_by_itself(books: Books) -> None:
    now = books.database.read_sync(clock.database_now)
    publish(books)
    publish(books, input=200, effective_from=now + clock.DAY)
    time = now + clock.SECOND
    ledger = Ledger(books.database, "gw_1", clock=lambda _connection: time)
    held = []
    for _ in range(3):
        held.append(await ledger.hold(books.request(model="model-b", prompt=1, most=1)))
        time += clock.DAY // 2
    assert [item.hold_picos for item in held if isinstance(item, Held)] == [500, 500, 600]


async def test_no_price_yet(books: Books) -> None:
    publish(books, effective_from=books.database.read_sync(clock.database_now) + clock.DAY)
    refused = await Ledger(books.database, "gw_1").hold(books.request(model="model-b"))
    assert isinstance(refused, HoldRefused)
    assert refused.code == "price_unknown"


async def test_the_largest_hold_fits_a_counter(books: Books) -> None:
    assert REQUEST_TOKENS_MAX * UNIT_PRICE_PICOS_MAX <= PICOS_MAX
    most = UNIT_PRICE_PICOS_MAX
    publish(books, input=most, cached_input=most, output=most)
    budget = books.budget(PICOS_MAX, unit="money")
    ledger = Ledger(books.database, "gw_1")
    held = [await ledger.hold(books.request(model="model-b", prompt=1, most=REQUEST_TOKENS_MAX - 1)) for _ in range(7)]
    granted = [item for item in held if isinstance(item, Held)]
    assert sum(item.hold_picos for item in granted) == books.state(budget)[1] <= PICOS_MAX
    assert isinstance(held[-1], HoldRefused)
    books.assert_sound(open_holds=len(granted))


def test_amounts_are_shown_exactly() -> None:
    assert format_picos(12_000_000, "USD") == "0.000012 USD"
    assert format_picos(3 * 10**12, "EUR") == "3 EUR"
    assert format_picos(-1, "USD") == "-0.000000000001 USD"
    assert format_picos(PICOS_MAX, "USD") == "9223372.036854775807 USD"
