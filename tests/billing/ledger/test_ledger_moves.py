"""A hold that is moved to another model: what budgets see, what is charged, and that no concurrency overshoots."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import prices
from billing.database import Database
from billing.ledger.ledger import Held, HoldEnded, HoldRefused, HoldUnknown, Ledger, LedgerUnavailable
from billing.ledger.messages import HoldEnding, HoldRequest
from billing.proofs.ledger_audit import audit_ledger
from support.billing.books import CACHED, INPUT, OUTPUT, Books, beginning_with, settlement

DEAR = 3  # times model-a's prices


@pytest.fixture
def ledger(books: Books) -> Ledger:
    publish(books)
    return Ledger(books.database, "gw_1")


def publish(books: Books) -> None:
    books.database.write_sync(
        lambda connection: prices.publish(
            connection,
            subject="dear",
            input=DEAR * INPUT,
            cached_input=DEAR * CACHED,
            output=DEAR * OUTPUT,
            multipliers={"standard": 1},
        )
    )


def to(request: HoldRequest, model: str = "dear", *, prompt: int = 20, most: int = 50) -> HoldRequest:
    return msgspec.structs.replace(request, model=model, prompt_tokens=prompt, max_tokens=most)


def row(books: Books, request: HoldRequest) -> sa.Row[tuple[object, ...]]:
    query = sa.select(tables.holds).where(tables.holds.c.request_id == request.request_id)
    return books.database.read_sync(lambda connection: connection.execute(query).one())


async def test_moved_and_settled_at_the_new_models_price(books: Books, ledger: Ledger) -> None:
    tokens, money = books.budget(1_000), books.budget(1_000_000, unit="money", period="day")
    request = books.request(prompt=10, most=90)
    first = await ledger.hold(request)
    moved = await ledger.move(to(request))
    assert isinstance(first, Held)
    assert isinstance(moved, Held)
    assert (moved.max_tokens, moved.hold_picos) == (50, DEAR * (20 * INPUT + 50 * OUTPUT))
    assert moved.price_version_id != first.price_version_id
    assert books.state(tokens) == (0, 70)
    assert books.state(money) == (0, moved.hold_picos)
    assert await ledger.move(to(request)) == moved, "asked again, it changes nothing"
    assert books.state(tokens) == (0, 70)
    cost = DEAR * (15 * INPUT + 5 * CACHED + 7 * OUTPUT)
    assert await ledger.settle(settlement(request, 7, prompt=20, cached=5)) == HoldEnding(
        request.request_id, "settled", cost
    )
    assert (books.state(tokens), books.state(money)) == ((27, 0), (cost, 0))
    query = sa.select(tables.usage.c.model, tables.usage.c.cost_picos)
    assert books.database.read_sync(lambda connection: connection.execute(query).one()) == ("dear", cost)
    books.assert_sound()


async def test_clamped_beside_all_but_itself(books: Books, ledger: Ledger) -> None:
    budget = books.budget(110)
    request = books.request(prompt=10, most=90)
    await ledger.hold(request)
    moved = await ledger.move(to(request, prompt=20, most=500))
    assert isinstance(moved, Held)
    assert moved.max_tokens == 90, "its own hundred are free for it"
    assert books.state(budget) == (0, 110)
    books.assert_sound(open_holds=1)


@pytest.mark.parametrize("why", ["budget", "price"])
async def test_refused_it_stays_as_it_was(books: Books, ledger: Ledger, why: str) -> None:
    budget = books.budget(10 * INPUT + 90 * OUTPUT, unit="money")
    request = books.request(prompt=10, most=90)
    held = await ledger.hold(request)
    before = row(books, request)
    refused = await ledger.move(to(request, prompt=10_000) if why == "budget" else to(request, "nobody-priced-it"))
    assert isinstance(refused, HoldRefused)
    assert refused.code == ("tenant_budget_exceeded" if why == "budget" else "price_unknown")
    assert row(books, request) == before
    assert isinstance(held, Held)
    assert books.state(budget) == (0, held.hold_picos)
    await ledger.void(request.request_id, "engine_refused_queue_full")
    assert books.state(budget) == (0, 0)
    books.assert_sound()


async def test_what_is_not_held_cannot_be_moved(books: Books, ledger: Ledger) -> None:
    unknown, ended, others = books.request(), books.request(), books.request()
    await ledger.hold(ended)
    await ledger.hold(others)
    await ledger.void(ended.request_id, "refused")
    with pytest.raises(HoldUnknown):
        await ledger.move(to(unknown))
    with pytest.raises(HoldEnded, match="voided"):
        await ledger.move(to(ended))
    with pytest.raises(ValueError, match="another tenant, project or key"):
        await ledger.move(msgspec.structs.replace(to(others), key_id="key_b"))
    books.assert_sound(open_holds=1)


async def test_budgets_that_came_and_went_meanwhile(books: Books, ledger: Ledger) -> None:
    """It counts in those that there are now, as a fresh hold does."""
    request = books.request(prompt=10, most=90)
    await ledger.hold(request)
    later = books.budget(1_000, key="key_a")
    await ledger.move(to(request))
    assert books.state(later) == (0, 70)
    await ledger.settle(settlement(request, 7, prompt=20))
    assert books.state(later) == (27, 0)
    books.assert_sound()


@pytest.mark.parametrize("limit", [64 * 100 * OUTPUT, 10 * 100 * OUTPUT])
async def test_64_moves_at_once_overshoot_nothing(books: Books, ledger: Ledger, limit: int) -> None:
    budget = books.budget(limit, unit="money")
    requests = [books.request(prompt=10, most=random.Random(n).randint(1, 90)) for n in range(64)]

    async def run(request: HoldRequest) -> bool:
        if not isinstance(await ledger.hold(request), Held):
            return False
        moved = await ledger.move(to(request, most=90))
        if isinstance(moved, Held):
            await ledger.settle(settlement(request, moved.max_tokens, prompt=20))
        else:
            await ledger.void(request.request_id, "refused")
        return isinstance(moved, Held)

    done = await asyncio.gather(*map(run, requests))
    used, held = books.state(budget)
    assert held == 0
    assert 0 < used <= limit
    assert any(done)
    assert not all(done)
    books.assert_sound()


async def test_two_gateways_move_against_each_other(postgres_books: Books) -> None:
    books = postgres_books
    publish(books)
    budget = books.budget(20_000)
    key_budgets = [books.budget(4_000, key=f"key_{number}", period="day") for number in range(4)]

    async def client(ledger: Ledger, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            request = books.request(key=f"key_{chance.randrange(4)}", most=chance.randint(1, 90))
            if not isinstance(await ledger.hold(request), Held):
                continue
            moved = await ledger.move(to(request, most=chance.randint(1, 200)))
            if isinstance(moved, Held):
                await ledger.settle(settlement(request, moved.max_tokens, prompt=20))
            else:
                await ledger.void(request.request_id, "refused")

    other = Database(books.url)
    ledgers = [Ledger(books.database, "gw_1"), Ledger(other, "gw_2")]
    await asyncio.gather(*(client(ledger, seed) for seed, ledger in enumerate(ledgers * 12)))
    other.close()
    assert books.state(budget)[1] == 0
    assert all(books.state(one)[0] <= 4_000 for one in key_budgets)
    assert books.database.read_sync(audit_ledger).sound
    books.assert_sound()


async def test_a_database_that_cannot_serve(postgres_books: Books) -> None:
    """Nobody knows which of the two the hold is; it is voided all the same."""
    books = postgres_books
    publish(books)
    budget = books.budget(1_000)
    ledger = Ledger(books.database, "gw_1")
    request = books.request()
    await ledger.hold(request)
    with beginning_with(books.database, "SET TRANSACTION READ ONLY"), pytest.raises(LedgerUnavailable):
        await ledger.move(to(request))
    assert (await ledger.void(request.request_id, "ledger_unavailable")).outcome == "voided"
    assert books.state(budget) == (0, 0)
    await ledger.close()
    books.assert_sound()
