"""Limits by day, month and in total: windows, their roll-over, and what may be said of them."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from billing import clock, revision
from billing.accounts import budgets
from billing.accounts.prices import PICOS_MAX
from billing.clock import SECOND, from_datetime, window_end, window_start
from billing.errors import InvalidValue, RowNotFound
from billing.ledger.ledger import Held, HoldRefused, Ledger
from support.billing.books import Books, settlement


def moment(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=UTC))


UTC_ZONE = ZoneInfo("UTC")


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        ("day", "2031-02-28T23:59:59.999999", "2031-02-28", "2031-03-01"),
        ("day", "2031-03-01T00:00:00", "2031-03-01", "2031-03-02"),
        ("month", "2032-02-29T12:00:00", "2032-02-01", "2032-03-01"),
        ("month", "2031-12-31T23:59:59", "2031-12-01", "2032-01-01"),
        ("month", "2031-01-01T00:00:00", "2031-01-01", "2031-02-01"),
    ],
)
def test_windows_of_utc(period: clock.Period, now: str, start: str, end: str) -> None:
    assert window_start(period, moment(now), UTC_ZONE) == moment(start)
    assert window_end(period, moment(start), UTC_ZONE) == moment(end)


@pytest.mark.parametrize(
    ("zone", "period", "now", "start", "end"),
    [
        # A day of 23 hours, and one of 25.
        ("Europe/Berlin", "day", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("Europe/Berlin", "day", "2026-10-25T00:30", "2026-10-24T22:00", "2026-10-25T23:00"),
        # A month that begins in summer time and ends in winter time, and the last moment of one.
        ("Europe/Berlin", "month", "2026-10-31T22:59:59", "2026-09-30T22:00", "2026-10-31T23:00"),
        ("America/New_York", "month", "2026-11-01T03:59:59", "2026-10-01T04:00", "2026-11-01T04:00"),
        ("America/New_York", "month", "2026-11-01T04:00", "2026-11-01T04:00", "2026-12-01T05:00"),
        # Half an hour of daylight saving.
        ("Australia/Lord_Howe", "day", "2026-04-04T14:00", "2026-04-04T13:00", "2026-04-05T13:30"),
        # Midnight is skipped: the day begins at 01:00.
        ("Africa/Cairo", "day", "2026-04-24T10:00", "2026-04-23T22:00", "2026-04-24T21:00"),
        ("Africa/Cairo", "day", "2026-04-23T21:59:59", "2026-04-22T22:00", "2026-04-23T22:00"),
        # Midnight comes twice: the day begins with the first.
        ("America/Havana", "day", "2026-11-01T05:30", "2026-11-01T04:00", "2026-11-02T05:00"),
        ("Pacific/Kiritimati", "month", "2026-12-31T10:00", "2026-12-31T10:00", "2027-01-31T10:00"),
    ],
)
def test_windows_begin_at_the_tenants_midnight(zone: str, period: clock.Period, now: str, start: str, end: str) -> None:
    assert window_start(period, moment(now), ZoneInfo(zone)) == moment(start)
    assert window_end(period, moment(start), ZoneInfo(zone)) == moment(end)


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Africa/Cairo", "America/Havana"])
def test_windows_of_a_year_follow_each_other_without_a_gap(zone: str) -> None:
    for period in ("day", "month"):
        at = window_start(period, moment("2026-01-01T12:00"), ZoneInfo(zone))
        while at < moment("2027-01-01T12:00"):
            end = window_end(period, at, ZoneInfo(zone))
            assert end is not None
            assert window_start(period, end - 1, ZoneInfo(zone)) == at
            assert window_start(period, end, ZoneInfo(zone)) == end
            at = end


def test_time_zones_are_not_the_hosts(tmp_path: Path) -> None:
    """A host whose own tables say otherwise, older ones for instance, counts in the same windows."""
    (tmp_path / "Europe").mkdir()
    with files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").open("rb") as file:
        (tmp_path / "Europe" / "Berlin").write_bytes(file.read())
    try:
        zoneinfo.reset_tzpath([str(tmp_path)])
        ZoneInfo.clear_cache()
        noon = moment("2031-01-15T12:00")
        assert window_start("day", noon, ZoneInfo("Europe/Berlin")) == moment("2031-01-14T15:00"), "the host's"
        assert window_start("day", noon, clock.zone_of("Europe/Berlin")) == moment("2031-01-14T23:00")
    finally:
        zoneinfo.reset_tzpath()
        ZoneInfo.clear_cache()


def test_a_total_has_one_window() -> None:
    assert window_start("total", moment("2031-01-01"), UTC_ZONE) == 0
    assert window_end("total", 0, UTC_ZONE) is None


def test_moments_are_exact() -> None:
    at = 1_900_000_000_123_457
    assert from_datetime(clock.to_datetime(at)) == at
    assert clock.rfc3339(at) == "2030-03-17T17:46:40Z"


async def test_roll_over(books: Books) -> None:
    """A new day and a new month have budgets of their own; what was held yesterday is posted to yesterday."""
    day, month = books.budget(100, period="day"), books.budget(250, period="month")
    time = moment("2031-01-30T23:59:59")

    def now(_connection: object) -> int:
        return time

    def used_and_held(budget: budgets.Budget) -> tuple[int, int]:
        states = books.database.read_sync(lambda connection: budgets.list_budget_states(connection, clock=now))
        return next((state.used, state.held) for state in states if state.budget == budget)

    ledger = Ledger(books.database, "gw_1", clock=now)
    first, second, third = books.request(), books.request(), books.request()
    assert isinstance(await ledger.hold(first), Held)
    refused = await ledger.hold(second)
    assert isinstance(refused, HoldRefused)
    assert refused.resets_at == moment("2031-01-31")

    time += 2 * SECOND
    assert used_and_held(day) == (0, 0)
    assert isinstance(await ledger.hold(second), Held)
    await ledger.settle(settlement(first, 40))
    assert used_and_held(day) == (0, 100), "first was posted to the day before"
    assert used_and_held(month) == (50, 100)

    await ledger.settle(settlement(second, 90))
    time = moment("2031-02-01")
    assert used_and_held(day) == used_and_held(month) == (0, 0)
    held = await ledger.hold(third)
    assert isinstance(held, Held)
    assert held.max_tokens == 90
    await ledger.settle(settlement(third, 0))
    books.assert_sound()


async def test_a_hold_stays_in_the_budget_of_a_key_that_was_rotated(books: Books) -> None:
    """While it runs its key's budget becomes another key's: decided again for another model, it is counted there."""
    budget = books.budget(1_000, key="key_a")
    ledger = Ledger(books.database, "gw_1")
    request = books.request(prompt=10, most=90)
    await ledger.hold(request)
    books.database.write_sync(lambda connection: budgets.hand_over(connection, "key_a", "key_b"))
    assert isinstance(await ledger.move(msgspec.structs.replace(request, prompt_tokens=20)), Held)
    [state] = books.database.read_sync(lambda connection: budgets.list_budget_states(connection, scope_id="key_b"))
    assert (state.budget.id, state.used, state.held) == (budget.id, 0, 110)
    await ledger.settle(settlement(request, 7))
    [state] = books.database.read_sync(lambda connection: budgets.list_budget_states(connection, scope_id="key_b"))
    assert (state.used, state.held) == (17, 0)
    books.assert_sound()


async def test_states_say_used_held_left_and_reset(books: Books) -> None:
    budget, total = books.budget(1_000, period="month"), books.budget(5_000)
    ledger = Ledger(books.database, "gw_1")
    first = books.request()
    await ledger.hold(first)
    await ledger.settle(settlement(first, 7))
    await ledger.hold(books.request())
    states = books.database.read_sync(
        lambda connection: budgets.list_budget_states(connection, tenant_id=books.tenant.id)
    )
    assert [state.budget for state in states] == [budget, total]
    assert [(state.used, state.held, state.left) for state in states] == [(17, 100, 883), (17, 100, 4_883)]
    assert states[0].resets_at == window_end("month", states[0].window_start, UTC_ZONE)
    assert states[1].resets_at is None


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"scope": "galaxy"}, InvalidValue),
        ({"unit": "bananas"}, InvalidValue),
        ({"period": "fortnight"}, InvalidValue),
        ({"limit_amount": -1}, InvalidValue),
        ({"limit_amount": PICOS_MAX + 1}, InvalidValue),
        ({"scope_id": "ten_other"}, InvalidValue),
        ({"tenant_id": "ten_other", "scope_id": "ten_other"}, RowNotFound),
    ],
)
def test_refused(books: Books, changes: dict[str, Any], error: type[Exception]) -> None:
    good: dict[str, Any] = {
        "tenant_id": books.tenant.id,
        "scope": "tenant",
        "scope_id": books.tenant.id,
        "unit": "tokens",
        "period": "day",
        "limit_amount": 10,
    }
    with pytest.raises(error):
        books.database.write_sync(lambda connection: budgets.create_budget(connection, **(good | changes)))


def test_so_many_and_no_more(books: Books) -> None:
    for _ in range(budgets.BUDGETS_MAX):
        books.budget(1, key="key_a")
    with pytest.raises(InvalidValue):
        books.budget(1, key="key_a")
    books.budget(1, key="key_b")


def test_every_write_bumps_the_revision(books: Books) -> None:
    def number() -> int:
        return books.database.read_sync(revision.read_revision)

    before = number()
    budget = books.budget(10)
    books.database.write_sync(lambda connection: budgets.change_budget(connection, budget.id, limit_amount=20))
    removed = books.database.write_sync(lambda connection: budgets.deactivate_budget(connection, budget.id))
    assert number() == before + 3
    assert (removed.limit_amount, removed.active) == (20, False)
    assert (
        books.database.read_sync(lambda connection: budgets.list_budgets(connection, tenant_id=books.tenant.id)) == []
    )
    assert books.database.read_sync(lambda connection: budgets.list_budgets(connection, inactive=True)) == [removed]
    with pytest.raises(RowNotFound):
        books.database.write_sync(lambda connection: budgets.deactivate_budget(connection, "bud_none"))
    assert number() == before + 3
