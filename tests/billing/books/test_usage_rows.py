"""Sums and pages over what was used equal what was settled, and show no other tenant's rows."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import tenants
from billing.books import margins, periods, rollups, usage
from billing.books.usage import UsageFilter
from billing.ledger.ledger import Ledger
from billing.ledger.messages import Recompute
from support.billing.books import INPUT, OUTPUT, Books, settlement


@pytest.fixture
async def other(books: Books) -> tenants.Tenant:
    """Nine requests of two tenants, keys and tiers."""
    tenant = books.database.write_sync(
        lambda connection: tenants.create_tenant(connection, slug="globex", name="Globex", tier="standard")
    )
    ledger = Ledger(books.database, "gw_1")
    for number in range(9):
        request = books.request(
            key=f"key_{'ab'[number % 2]}",
            tier="premium" if number % 3 == 0 else "standard",
            tenant_id=tenant.id if number >= 6 else None,
        )
        await ledger.hold(request)
        await ledger.settle(settlement(request, number))
    return tenant


def test_totals(books: Books, other: tenants.Tenant) -> None:
    def totals(which: UsageFilter) -> usage.Totals:
        return books.database.read_sync(lambda connection: usage.sum_usage(connection, which))

    everything = totals(UsageFilter())
    assert (everything.requests, everything.prompt_tokens, everything.completion_tokens) == (9, 90, 36)
    mine = totals(UsageFilter(tenant_id=books.tenant.id))
    assert (mine.requests, mine.completion_tokens, mine.made_tokens) == (6, 15, 15)
    premium, standard = (totals(UsageFilter(tenant_id=books.tenant.id, tier=tier)) for tier in ("premium", "standard"))
    assert standard.cost_picos == {"USD": 4 * 10 * INPUT + (1 + 2 + 4 + 5) * OUTPUT}
    assert premium.cost_picos == {"USD": 3 * (2 * 10 * INPUT + (0 + 3) * OUTPUT)}
    assert mine.cost_picos["USD"] == premium.cost_picos["USD"] + standard.cost_picos["USD"]
    assert totals(UsageFilter(key_id="key_a")).requests + totals(UsageFilter(key_id="key_b")).requests == 9
    assert totals(UsageFilter(model="none")).cost_picos == {}


def test_pages(books: Books, other: tenants.Tenant) -> None:
    def page(after: int) -> list[usage.UsageRow]:
        which = UsageFilter(tenant_id=books.tenant.id)
        return books.database.read_sync(
            lambda connection: usage.list_usage_rows(connection, which, after=after, limit=4)
        )

    rows: list[usage.UsageRow] = []
    while found := page(rows[-1].sequence if rows else 0):
        rows += found
    assert [row.completion_tokens for row in rows] == [0, 1, 2, 3, 4, 5]
    assert {row.tenant_id for row in rows} == {books.tenant.id}


def test_between_two_moments(books: Books, other: tenants.Tenant) -> None:
    rows = books.database.read_sync(lambda connection: usage.list_usage_rows(connection, UsageFilter()))
    middle = rows[4].finished_at
    before = books.database.read_sync(lambda connection: usage.list_usage_rows(connection, UsageFilter(end=middle)))
    after = books.database.read_sync(lambda connection: usage.list_usage_rows(connection, UsageFilter(start=middle)))
    assert [row.request_id for row in before + after] == [row.request_id for row in rows]
    assert rows[4] in after
    books.database.write_sync(lambda connection: rollups.fold_usage(connection, limit=6))  # the others stay as they are
    assert (
        books.database.read_sync(lambda connection: usage.list_usage_rows(connection, UsageFilter(end=middle)))
        == before
    )
    assert (
        books.database.read_sync(lambda connection: usage.list_usage_rows(connection, UsageFilter(start=middle)))
        == after
    )
    which = UsageFilter(start=rows[0].finished_at, end=rows[-1].finished_at + 1)

    def page(after: int) -> list[usage.UsageRow]:
        return books.database.read_sync(lambda c: usage.list_usage_rows(c, which, after=after, limit=4))

    paged = page(0)
    while found := page(paged[-1].sequence):
        paged += found
    assert paged == rows


async def test_preemption_is_charged_to_the_tier_that_caused_it(books: Books) -> None:
    ledger = Ledger(books.database, "gw_1")
    costs = [
        ("batch", 1.0, {"premium": Recompute(30, 0.25), "standard": Recompute(5, 0.125)}, 7),
        ("batch", 2.0, {"premium": Recompute(10, 0.5)}, 0),
        ("premium", 4.0, {}, 0),
    ]
    waits = {"batch": {"premium": 0.5, "standard": 0.000001}}
    for tier, device_s, recomputed, swapped in costs:
        request = books.request(tier=tier)
        await ledger.hold(request)
        settled = msgspec.structs.replace(
            settlement(request, 5),
            device_s=device_s,
            preemptions=len(recomputed),
            recomputed_tokens=sum(cost.tokens for cost in recomputed.values()),
            recomputed=recomputed,
            swapped_tokens=swapped,
            queue_device_s=waits.get(tier, {}),
        )
        first = await ledger.settle(settled)
        assert await ledger.settle(settled) == first  # and nothing is written twice
    which = UsageFilter(tier="batch")
    rows = books.database.read_sync(lambda connection: usage.list_usage_rows(connection, which))
    assert [(row.device_s, row.recomputed, row.swapped_tokens) for row in rows] == [cost[1:] for cost in costs[:2]]
    assert books.database.read_sync(lambda connection: usage.get_usage_row(connection, rows[0].request_id)) == rows[0]
    assert [row.queue_device_s for row in rows] == [waits["batch"]] * 2
    [premium] = books.database.read_sync(
        lambda connection: usage.list_usage_rows(connection, UsageFilter(tier="premium"))
    )
    assert premium.queue_device_s == {}
    totals = books.database.read_sync(lambda connection: usage.sum_usage(connection, which))
    assert (totals.device_s, totals.preemptions, totals.swapped_tokens) == (3.0, 3, 7)
    assert totals.recomputed == {"premium": Recompute(40, 0.75), "standard": Recompute(5, 0.125)}
    # What a margin report sums: all device time, at the tier that caused it.
    caused = sa.union_all(
        *(sa.select(table.c.tier, table.c.device_s) for table in (tables.usage, tables.usage_recompute))
    ).subquery()
    query = sa.select(caused.c.tier, sa.func.sum(caused.c.device_s)).group_by(caused.c.tier)
    by_cause = books.database.read_sync(lambda connection: connection.execute(query).all())
    assert dict(map(tuple, by_cause)) == {"batch": 3.0, "premium": 4.75, "standard": 0.125}

    books.database.write_sync(rollups.fold_usage)
    assert books.database.read_sync(lambda connection: usage.sum_usage(connection, which)) == totals
    [period] = books.database.read_sync(periods.list_periods)
    found = books.database.read_sync(lambda c: margins.by_tier(c, period.month, device_picos=lambda _: 1000))
    assert {one.tier: (one.device_s, one.preemption_s, one.preempted_tokens) for one in found.tiers} == {
        "batch": (3.0, 0.0, 0),
        "premium": (4.0, 0.75, 40),
        "standard": (0.0, 0.125, 5),
    }
    margin = next(one for one in found.tiers if one.tier == "premium")
    assert (margin.cost_picos, margin.preemption_picos) == (4750, 750)
    assert margin.margin_picos == margin.usage_picos - 4750
