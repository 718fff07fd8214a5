"""Hold, settle, void: what is granted, what is charged, and that each happens once."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
import pytest
import sqlalchemy as sa

from billing import clock, tables
from billing.accounts import budgets, prices, tenants
from billing.books import history, usage
from billing.clock import SECOND
from billing.database import Database
from billing.ledger.ledger import BURST_TRANSACTIONS, Held, HoldRefused, HoldUnknown, Ledger, RequestIdReused
from billing.ledger.messages import HoldEnding
from billing.proofs.ledger_audit import LedgerAudit
from support.billing.books import CACHED, INPUT, OUTPUT, Books, CommitCount, settlement


@pytest.fixture
def ledger(books: Books) -> Ledger:
    return Ledger(books.database, "gw_1")


def entries(database: Database, request_id: str) -> dict[str, int]:
    table = tables.entries
    query = sa.select(table.c.account, table.c.meter, table.c.amount_picos).where(table.c.transaction_id == request_id)
    rows = database.read_sync(lambda connection: connection.execute(query).all())
    return {row.meter or row.account: row.amount_picos for row in rows}


async def test_hold_then_settle(books: Books, ledger: Ledger) -> None:
    tokens, money = books.budget(1_000), books.budget(1_000_000, unit="money", period="day")
    request = books.request(prompt=10, most=90)
    held = await ledger.hold(request)
    assert isinstance(held, Held)
    assert (held.max_tokens, held.hold_picos) == (90, 10 * INPUT + 90 * OUTPUT)
    assert books.state(tokens) == (0, 100)
    assert books.state(money) == (0, held.hold_picos)

    cost = 6 * INPUT + 4 * CACHED + 7 * OUTPUT
    ended = await ledger.settle(settlement(request, 7, cached=4))
    assert ended == HoldEnding(request.request_id, "settled", cost)
    assert books.state(tokens) == (17, 0)
    assert books.state(money) == (cost, 0)
    assert entries(books.database, request.request_id) == {
        "receivable": cost,
        "input": -6 * INPUT,
        "cached_input": -4 * CACHED,
        "output": -7 * OUTPUT,
    }
    row = books.database.read_sync(lambda connection: usage.get_usage_row(connection, request.request_id))
    assert row is not None
    assert (row.tenant_id, row.key_id, row.model, row.tier) == (books.tenant.id, "key_a", "model-a", "standard")
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (10, 4, 7)
    assert (row.cost_picos, row.currency, row.price_version_id) == (cost, "USD", held.price_version_id)
    assert row.started_at <= row.finished_at
    books.assert_sound()


async def test_everything_said_at_settlement_is_kept(books: Books, ledger: Ledger) -> None:
    request = books.request()
    await ledger.hold(request)
    said = msgspec.structs.replace(
        settlement(request, 7),
        made_tokens=9,
        discarded_tokens=2,
        discard_reason="overrun",
        ending="client_left",
        age_s=0.75,
        queue_s=0.25,
        ttft_s=0.5,
        device_s=0.125,
        preemptions=3,
        recomputed_tokens=40,
        finished_at=1_700_000_000_000_000,
    )
    await ledger.settle(said)
    row = books.database.read_sync(lambda connection: usage.get_usage_row(connection, request.request_id))
    assert row is not None
    kept = msgspec.structs.asdict(said)
    del kept["age_s"], kept["before_hold_s"]
    del kept["engines"]  # tests/billing/proofs/test_engine_books.py
    del kept["output"]  # test_outputs.py
    assert kept.items() <= msgspec.structs.asdict(row).items()
    assert row.started_at == row.finished_at - 0.75 * SECOND, "it began when it arrived"


@pytest.mark.parametrize("before_hold_s", [0.0, 0.125])
async def test_the_age_of_a_settlement_of_an_earlier_version_is_unknown(
    books: Books, ledger: Ledger, before_hold_s: float
) -> None:
    request = books.request()
    await ledger.hold(request)
    await ledger.settle(msgspec.structs.replace(settlement(request, 7), before_hold_s=before_hold_s))
    found = books.database.read_sync(lambda connection: history.get_whole_request(connection, request.request_id))
    assert found.usage is not None
    assert found.usage.started_at == found.hold.held_at - before_hold_s * SECOND


async def test_repeated_calls_change_nothing(books: Books, ledger: Ledger) -> None:
    budget = books.budget(1_000)
    request = books.request()
    first = await ledger.hold(request)
    assert await ledger.hold(request) == first
    assert books.state(budget) == (0, 100)
    settled = await ledger.settle(settlement(request, 7))
    assert await ledger.settle(settlement(request, 7)) == settled
    assert await ledger.settle(settlement(request, 90)) == settled, "the first settlement stands"
    assert await ledger.void(request.request_id, "late") == settled
    assert books.state(budget) == (17, 0)
    with pytest.raises(RequestIdReused):
        await ledger.hold(request)
    books.assert_sound()


async def test_the_same_calls_in_one_group(books: Books, ledger: Ledger) -> None:
    budget = books.budget(1_000)
    request = books.request()
    first, second = await asyncio.gather(ledger.hold(request), ledger.hold(request))
    assert first == second
    assert books.state(budget) == (0, 100)
    settled, voided = await asyncio.gather(
        ledger.settle(settlement(request, 7)), ledger.void(request.request_id, "refused")
    )
    assert settled == voided
    assert settled.outcome == "settled"
    assert books.state(budget) == (17, 0)
    books.assert_sound()


async def test_void(books: Books, ledger: Ledger) -> None:
    budget = books.budget(1_000)
    request = books.request()
    await ledger.hold(request)
    assert await ledger.void(request.request_id, "queue_full") == HoldEnding(request.request_id, "voided")
    assert await ledger.void(request.request_id, "queue_full") == HoldEnding(request.request_id, "voided")
    assert await ledger.settle(settlement(request, 7)) == HoldEnding(request.request_id, "voided")
    assert await ledger.void("req_never_held", "refused") == HoldEnding("req_never_held", "unknown")
    assert books.state(budget) == (0, 0)
    assert entries(books.database, request.request_id) == {}
    books.assert_sound()


async def test_settling_what_was_never_held_is_our_mistake_alone(books: Books, ledger: Ledger) -> None:
    request, greedy = books.request(), books.request()
    await ledger.hold(request)
    await ledger.hold(greedy)
    results = await asyncio.gather(
        ledger.settle(settlement("req_unknown", 1)),
        ledger.settle(settlement(greedy, 91)),
        ledger.settle(settlement(request, 90)),
        return_exceptions=True,
    )
    assert isinstance(results[0], HoldUnknown)
    assert isinstance(results[1], AssertionError)
    assert isinstance(results[2], HoldEnding)
    books.assert_sound(open_holds=1)


async def test_a_settlement_that_contradicts_itself_is_not_taken(books: Books, ledger: Ledger) -> None:
    request = books.request()
    await ledger.hold(request)
    for wrong in ({"made_tokens": 6}, {"cached_tokens": 11}, {"completion_tokens": -1}, {"discarded_tokens": 1}):
        with pytest.raises(AssertionError):
            await ledger.settle(msgspec.structs.replace(settlement(request, 7), **wrong))
    books.assert_sound(open_holds=1)


# ---- what is granted


@pytest.mark.parametrize(("left", "granted"), [(100, 90), (99, 89), (11, 1)])
async def test_clamped_to_the_tokens_left(books: Books, ledger: Ledger, left: int, granted: int) -> None:
    books.budget(left)
    held = await ledger.hold(books.request(prompt=10, most=90))
    assert isinstance(held, Held)
    assert held.max_tokens == granted


async def test_clamped_to_the_money_left(books: Books, ledger: Ledger) -> None:
    budget = books.budget(10 * INPUT + 5 * OUTPUT + OUTPUT - 1, unit="money")
    held = await ledger.hold(books.request(prompt=10, most=90))
    assert isinstance(held, Held)
    assert (held.max_tokens, held.hold_picos) == (5, 10 * INPUT + 5 * OUTPUT)
    assert books.state(budget) == (0, held.hold_picos)


async def test_clamped_by_the_tightest_budget(books: Books, ledger: Ledger) -> None:
    books.budget(10_000)
    books.budget(10 * INPUT + 40 * OUTPUT, unit="money", period="month")
    books.budget(60, key="key_a", period="day")
    books.budget(20, key="key_b", period="day")
    held = [await ledger.hold(books.request(key=key)) for key in ("key_b", "key_a", "key_c")]
    assert [item.max_tokens for item in held if isinstance(item, Held)] == [10, 27]
    assert isinstance(held[2], HoldRefused), "the tenant's money is held"


async def test_a_grant_is_never_below_what_is_needed(books: Books, ledger: Ledger) -> None:
    """`min_tokens`: a request for several texts, each of which needs a token."""
    books.budget(10 + 4)
    four, five = (msgspec.structs.replace(books.request(prompt=10, most=90), min_tokens=least) for least in (4, 5))
    refused = await ledger.hold(five)
    assert isinstance(refused, HoldRefused)
    assert "needed at least 15 tokens" in refused.message
    held = await ledger.hold(four)
    assert isinstance(held, Held)
    assert held.max_tokens == 4


@pytest.mark.parametrize("unit", ["tokens", "money"])
async def test_a_request_without_an_answer_needs_its_prompt_alone(
    books: Books, ledger: Ledger, unit: Literal["tokens", "money"]
) -> None:
    books.budget(10 if unit == "tokens" else 10 * INPUT, unit=unit)
    alone, longer = (
        msgspec.structs.replace(books.request(prompt=prompt, most=1), min_tokens=0, max_tokens=0) for prompt in (10, 11)
    )
    assert isinstance(await ledger.hold(longer), HoldRefused)
    held = await ledger.hold(alone)
    assert isinstance(held, Held)
    assert (held.max_tokens, held.hold_picos) == (0, 10 * INPUT)
    assert (await ledger.settle(settlement(alone, 0))).cost_picos == 10 * INPUT
    books.assert_sound()


async def test_a_budget_that_is_used_up_refuses_a_free_answer_too(books: Books, ledger: Ledger) -> None:
    """Completion tokens without a price do not make a prompt affordable."""
    books.database.write_sync(
        lambda connection: prices.publish(
            connection, subject="half", input=5, cached_input=5, output=0, multipliers={"standard": 1}
        )
    )
    books.budget(0, unit="money")
    alone = msgspec.structs.replace(books.request(model="half", prompt=10, most=1), min_tokens=0, max_tokens=0)
    assert isinstance(await ledger.hold(alone), HoldRefused)


async def test_a_free_model_needs_no_money(books: Books, ledger: Ledger) -> None:
    books.database.write_sync(
        lambda connection: prices.publish(
            connection, subject="free", input=0, cached_input=0, output=0, multipliers={"standard": 1}
        )
    )
    books.budget(0, unit="money")
    request = books.request(model="free")
    assert isinstance(await ledger.hold(request), Held)
    assert (await ledger.settle(settlement(request, 7))).cost_picos == 0
    books.assert_sound()


async def test_refusal_says_what_was_used_held_and_needed(books: Books, ledger: Ledger) -> None:
    books.budget(120, key="key_a", period="day")
    first, second = books.request(prompt=10, most=40), books.request(prompt=10, most=50)
    await ledger.hold(first)
    await ledger.settle(settlement(first, 40))
    await ledger.hold(second)
    refused = await ledger.hold(books.request(prompt=10, most=5))
    assert isinstance(refused, HoldRefused)
    assert refused.code == "key_budget_exceeded"
    now = books.database.read_sync(clock.database_now)
    tomorrow = clock.window_start("day", now, ZoneInfo("UTC")) + clock.DAY
    assert refused.resets_at == tomorrow
    assert refused.message == (
        "The key's token budget (day) does not cover this request: limit 120 tokens, used 50 tokens, held 60 tokens "
        f"by running requests, needed at least 11 tokens. It resets at {clock.rfc3339(tomorrow)}."
    )
    books.assert_sound(open_holds=1)


async def test_refusal_names_the_budget_that_lasts_longest(books: Books, ledger: Ledger) -> None:
    books.budget(0, key="key_a", period="day")
    books.budget(1_000, unit="money", period="total")
    refused = await ledger.hold(books.request())
    assert isinstance(refused, HoldRefused)
    assert (refused.code, refused.resets_at) == ("tenant_budget_exceeded", None)
    assert "limit 0.000000001 USD" in refused.message
    assert "It never resets." in refused.message
    books.assert_sound()


async def test_a_refused_request_takes_nothing_and_fails_nobody(books: Books, ledger: Ledger) -> None:
    budget = books.budget(100)
    count = CommitCount(books.database)
    results = await asyncio.gather(
        ledger.hold(books.request(prompt=200)),
        ledger.hold(books.request(model="unpriced")),
        ledger.hold(books.request(tier="unknown")),
        ledger.hold(books.request(tenant_id="ten_unknown")),
        ledger.hold(books.request(prompt=10, most=90)),
        return_exceptions=True,
    )
    codes = [result.code for result in results if isinstance(result, HoldRefused)]
    assert codes == ["tenant_budget_exceeded", "price_unknown", "price_unknown"]
    assert isinstance(results[3], LookupError)
    assert isinstance(results[4], Held)
    assert count.commits == 1
    assert books.state(budget) == (0, 100)
    books.assert_sound(open_holds=1)


async def test_no_budget_no_bound(books: Books, ledger: Ledger) -> None:
    held = await ledger.hold(books.request(prompt=1_000_000, most=2_000_000))
    assert isinstance(held, Held)
    assert held.max_tokens == 2_000_000


# ---- prices


async def test_price_is_fixed_when_the_hold_is_taken(books: Books, ledger: Ledger) -> None:
    before = books.request()
    await ledger.hold(before)
    await books.database.write(
        lambda connection: prices.publish(
            connection, subject="model-a", input=200, cached_input=20, output=800, multipliers={"standard": 1}
        )
    )
    after = books.request()
    await ledger.hold(after)
    costs = [(await ledger.settle(settlement(request, 7))).cost_picos for request in (before, after)]
    assert costs == [10 * INPUT + 7 * OUTPUT, 2 * (10 * INPUT + 7 * OUTPUT)]
    books.assert_sound()


async def test_tier_multiplier(books: Books, ledger: Ledger) -> None:
    held = [await ledger.hold(books.request(tier=tier)) for tier in ("premium", "standard", "batch")]
    picos = [item.hold_picos for item in held if isinstance(item, Held)]
    assert picos == [3 * picos[1], 10 * INPUT + 90 * OUTPUT, picos[1] // 2]


async def test_adapter_has_its_own_price_or_its_models(books: Books, ledger: Ledger) -> None:
    books.database.write_sync(
        lambda connection: prices.publish(
            connection,
            subject_kind="adapter",
            subject="ada_1",
            input=1,
            cached_input=1,
            output=1,
            multipliers={"standard": 1},
        )
    )
    held = [await ledger.hold(books.request(adapter=adapter)) for adapter in ("ada_1", "ada_2", None)]
    assert [item.hold_picos for item in held if isinstance(item, Held)] == [100] + [10 * INPUT + 90 * OUTPUT] * 2


async def test_currency_is_the_tenants(books: Books, ledger: Ledger) -> None:
    other = books.database.write_sync(
        lambda connection: tenants.create_tenant(connection, slug="euro", name="Euro", tier="standard", currency="EUR")
    )
    refused = await ledger.hold(books.request(tenant_id=other.id))
    assert isinstance(refused, HoldRefused)
    assert refused.code == "price_unknown"
    assert "EUR" in refused.message


# ---- groups and callers


async def test_requests_that_arrive_together_share_a_commit(books: Books, ledger: Ledger) -> None:
    budget = books.budget(64 * 100)
    count = CommitCount(books.database)
    requests = [books.request() for _ in range(64)]
    assert all(isinstance(held, Held) for held in await asyncio.gather(*map(ledger.hold, requests)))
    await asyncio.gather(*(ledger.settle(settlement(request, 90)) for request in requests))
    assert count.commits == 2
    assert books.state(budget) == (64 * 100, 0)
    books.assert_sound()


async def test_no_commit_reads_a_whole_table(sqlite_books: Books) -> None:
    """A hold among a million costs what the first one did: every statement finds its rows by an index."""
    database, ledger = sqlite_books.database, Ledger(sqlite_books.database, "gw_1")
    sqlite_books.budget(10_000)
    sqlite_books.budget(10**9, unit="money", key="key_a")
    said: list[str] = []

    def driver(connection: sa.Connection) -> sqlite3.Connection:
        found = connection.connection.driver_connection
        assert isinstance(found, sqlite3.Connection)
        return found

    await database.write(lambda connection: driver(connection).set_trace_callback(said.append))
    request = sqlite_books.request()
    await ledger.hold(request)
    await ledger.settle(settlement(request, 7))
    await database.write(lambda connection: driver(connection).set_trace_callback(None))
    asked = [text for text in said if text.startswith(("SELECT", "INSERT", "UPDATE"))]
    assert {table.name for table in (tables.holds, tables.hold_charges, tables.budget_windows, tables.usage)} <= {
        word for text in asked for word in re.findall(r"\w+", text)
    }

    def plan(connection: sa.Connection) -> list[str]:
        return [row[3] for text in asked for row in driver(connection).execute(f"EXPLAIN QUERY PLAN {text}")]

    steps = await database.write(plan)
    assert any(step.startswith("SEARCH holds USING INDEX") for step in steps)
    assert [step for step in steps if step.startswith("SCAN") and step.split()[1] in tables.metadata.tables] == []


async def test_granted_in_the_order_of_arrival(books: Books, ledger: Ledger) -> None:
    books.budget(300)
    results = await asyncio.gather(*(ledger.hold(books.request()) for _ in range(5)))
    assert [isinstance(result, Held) for result in results] == [True, True, True, False, False]


async def test_endings_free_what_holds_of_their_group_need(books: Books, ledger: Ledger) -> None:
    books.budget(100)
    first, second = books.request(), books.request()
    await ledger.hold(first)
    held, _ended = await asyncio.gather(ledger.hold(second), ledger.void(first.request_id, "refused"))
    assert isinstance(held, Held)
    books.assert_sound(open_holds=1)


async def test_endings_under_load_share_the_next_hold_s_commit(
    books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.ledger.ledger.INTERVAL_S", 30.0)
    count = CommitCount(books.database)
    first, second = books.request(), books.request()
    await ledger.hold(first)
    settled = asyncio.create_task(ledger.settle(settlement(first, 7)))
    await asyncio.sleep(0.05)
    assert (count.commits, settled.done()) == (1, False)
    await ledger.hold(second)
    assert (await settled).outcome == "settled"
    assert count.commits == 2
    voided = asyncio.create_task(ledger.void(second.request_id, "test"))
    await asyncio.sleep(0)
    await ledger.close()  # waits for no interval
    assert (await voided).outcome == "voided"
    assert count.commits == 3
    books.assert_sound()


async def test_endings_alone_wait_for_the_interval(
    books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.ledger.ledger.INTERVAL_S", 0.3)
    count = CommitCount(books.database)
    requests = [books.request() for _ in range(8)]
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*map(ledger.hold, requests))
    await asyncio.gather(*(ledger.settle(settlement(request, 7)) for request in requests))
    assert asyncio.get_running_loop().time() - began >= 0.3
    assert count.commits == 2
    books.assert_sound()


async def test_lines_of_batches_wait_for_their_interval_or_for_a_caller_s_hold(
    books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.ledger.ledger.INTERVAL_S", 30.0)
    monkeypatch.setattr("billing.ledger.ledger.LINES_INTERVAL_S", 60.0)
    count = CommitCount(books.database)
    first, second = books.request(), books.request()
    await ledger.hold(first, is_line=True)
    settled = asyncio.create_task(ledger.settle(msgspec.structs.replace(settlement(first, 7), batch_id="batch_1")))
    held = asyncio.create_task(ledger.hold(second, is_line=True))
    await asyncio.sleep(0.05)
    assert (count.commits, settled.done(), held.done()) == (1, False, False)
    async with asyncio.timeout(10):
        await ledger.hold(books.request())
    assert (await settled).outcome == "settled"
    assert isinstance(await held, Held)
    assert count.commits == 2
    waiting = asyncio.create_task(ledger.hold(books.request(), is_line=True))
    await asyncio.sleep(0)
    await ledger.close()  # waits for no interval
    assert isinstance(await waiting, Held)
    books.assert_sound(open_holds=3)


async def test_transactions_of_lines_delay_no_caller_s_hold(
    books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not count to the burst of transactions that start without delay."""
    monkeypatch.setattr("billing.ledger.ledger.INTERVAL_S", 30.0)
    monkeypatch.setattr("billing.ledger.ledger.LINES_INTERVAL_S", 0.0)
    async with asyncio.timeout(20):
        for _ in range(2 * BURST_TRANSACTIONS):
            await ledger.hold(books.request(), is_line=True)
        for _ in range(BURST_TRANSACTIONS):
            await ledger.hold(books.request())
    late = asyncio.create_task(ledger.hold(books.request()))
    await asyncio.sleep(0.05)
    assert not late.done()
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    books.assert_sound(open_holds=3 * BURST_TRANSACTIONS)


async def test_an_ending_does_not_wait_for_the_lines_interval(
    books: Books, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.ledger.ledger.LINES_INTERVAL_S", 60.0)
    first, second = books.request(), books.request()
    await asyncio.gather(ledger.hold(first), ledger.hold(second))
    line = asyncio.create_task(ledger.settle(msgspec.structs.replace(settlement(first, 7), batch_id="batch_1")))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await ledger.settle(settlement(second, 7))
        assert (await line).outcome == "settled"  # with the ending's transaction
    books.assert_sound()


async def test_a_caller_that_leaves_while_its_hold_commits_holds_nothing(books: Books, ledger: Ledger) -> None:
    budget = books.budget(1_000)
    callers = [asyncio.create_task(ledger.hold(books.request())) for _ in range(8)]
    await asyncio.sleep(0)  # queued
    await asyncio.sleep(0)  # the commit is under way
    for caller in callers[::2]:
        caller.cancel()
    results = await asyncio.gather(*callers, return_exceptions=True)
    await ledger.close()
    assert sum(isinstance(result, Held) for result in results) == 4
    assert books.state(budget) == (0, 400)
    books.assert_sound(open_holds=4)


async def test_a_settlement_goes_through_though_its_caller_left(books: Books, ledger: Ledger) -> None:
    request = books.request()
    await ledger.hold(request)
    caller = asyncio.create_task(ledger.settle(settlement(request, 7)))
    await asyncio.sleep(0)
    caller.cancel()
    await ledger.close()
    assert (await ledger.settle(settlement(request, 7))).outcome == "settled"
    assert caller.cancelled()
    books.assert_sound()


async def test_what_cannot_be_written_fails_alone(books: Books, ledger: Ledger) -> None:
    """PostgreSQL takes no NUL in text; whatever a database will not take must not take the group with it."""
    good, bad = books.request(), books.request(key="key_\0" if not books.database.is_sqlite else "key_\ud800")
    held, error = await asyncio.gather(ledger.hold(good), ledger.hold(bad), return_exceptions=True)
    assert isinstance(held, Held)
    assert isinstance(error, Exception)
    assert (await ledger.settle(settlement(good, 7))).outcome == "settled"
    books.assert_sound()


async def test_a_changed_budget_counts_for_the_next_hold(books: Books, ledger: Ledger) -> None:
    budget = books.budget(100)
    assert isinstance(await ledger.hold(books.request()), Held)
    assert isinstance(await ledger.hold(books.request()), HoldRefused)
    await books.database.write(lambda connection: budgets.change_budget(connection, budget.id, limit_amount=200))
    assert isinstance(await ledger.hold(books.request()), Held)
    await books.database.write(lambda connection: budgets.change_budget(connection, budget.id, limit_amount=50))
    assert isinstance(await ledger.hold(books.request()), HoldRefused)
    await books.database.write(lambda connection: budgets.deactivate_budget(connection, budget.id))
    assert isinstance(await ledger.hold(books.request()), Held)
    findings = books.findings()
    assert findings.sound
    assert findings.overshot == [], "200 are held, and were within the limit before it was lowered to 50"
    raised = sa.update(tables.budget_windows).values(held=tables.budget_windows.c.held + 1)
    await books.database.write(lambda connection: connection.execute(raised).rowcount)
    assert len(books.findings().overshot) == 1


async def test_a_removed_budget_still_gets_its_endings(books: Books, ledger: Ledger) -> None:
    budget = books.budget(100)
    request = books.request()
    await ledger.hold(request)
    await books.database.write(lambda connection: budgets.deactivate_budget(connection, budget.id))
    await ledger.settle(settlement(request, 7))
    books.assert_sound()


async def test_audit_finds_a_counter_that_lies(books: Books, ledger: Ledger) -> None:
    budget = books.budget(1_000)
    await ledger.hold(books.request())
    spoil = sa.update(tables.budget_windows).values(posted=5)
    books.database.write_sync(lambda connection: connection.execute(spoil).rowcount)
    findings: LedgerAudit = books.findings()
    assert findings.wrong_counters == [f"{budget.id}@0"]
    assert not findings.sound


async def test_audit_finds_a_one_sided_entry_and_a_lost_usage_row(books: Books, ledger: Ledger) -> None:
    request = books.request()
    await ledger.hold(request)
    one_sided = sa.insert(tables.entries).values(
        transaction_id="req_x",
        tenant_id=books.tenant.id,
        account="receivable",
        amount_picos=5,
        currency="USD",
        recorded_at=0,
    )
    settled = sa.update(tables.holds).values(state="settled")
    books.database.write_sync(lambda connection: connection.execute(one_sided).rowcount)
    books.database.write_sync(lambda connection: connection.execute(settled).rowcount)
    findings = books.findings()
    assert findings.unbalanced == ["req_x"]
    assert findings.cost_difference_picos == -5
    assert findings.unrecorded == [request.request_id]
