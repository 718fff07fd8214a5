"""Billing periods: a tenant's months. A period's bounds are computed once, in the time zone that the tenant then has.

`usage_in_period` decides which period a usage row belongs to. This module knows no prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import DAY, rfc3339, to_datetime, window_end, window_start, zone_of
from billing.errors import InvalidValue, RowNotFound
from billing.ids import new_id

LIST_MAX = 1000
# The most months for which `ensure` creates one tenant's periods. Usage still later must be from a wrong clock.
MADE_AT_ONCE_MAX = 1200
SEQUENCE_MAX = 2**63 - 1
HALF_MONTH = 15 * DAY

_periods = tables.billing_periods
_usage = tables.usage
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


class Period(msgspec.Struct, frozen=True):
    """A row of billing_periods, in the order of its columns. start_at ≤ moment < end_at, in microseconds UTC."""

    id: str
    tenant_id: str
    month: str
    time_zone: str
    start_at: int
    end_at: int
    state: Literal["open", "closed"]
    opened_at: int
    late_after: int | None
    closed_sequence: int | None = None
    sequence_min: int | None = None
    sequence_max: int | None = None
    closed_at: int | None = None
    closed_by: str | None = None

    @property
    def place(self) -> tuple[int, str]:
        """The cursor of the period: the next page of a listing begins after this pair."""
        return self.start_at, self.id


def check_month(month: str) -> str:
    """Returns `month`. Raises InvalidValue unless it is a month like 2026-01."""
    if not _MONTH.fullmatch(month):
        raise InvalidValue(f"{month!r} is no month; write it as 2026-01", "month")
    return month


def usage_in_period() -> sa.ColumnElement[bool]:
    """Joins a usage row with its period: the tenant's first period that ends after the row's finished_at and was not
    closed before the row was written. Periods are closed in order, so the condition needs the previous period only."""
    is_late = sa.and_(_periods.c.late_after.is_not(None), _usage.c.sequence > _periods.c.late_after)
    return sa.and_(
        _usage.c.tenant_id == _periods.c.tenant_id,
        _usage.c.finished_at < _periods.c.end_at,
        _usage.c.sequence <= sa.func.coalesce(_periods.c.closed_sequence, SEQUENCE_MAX),
        sa.or_(_usage.c.finished_at >= _periods.c.start_at, is_late),
    )


def get_period(connection: sa.Connection, tenant_id: str, month: str) -> Period:
    """Raises RowNotFound, InvalidValue."""
    query = sa.select(_periods).where(_periods.c.tenant_id == tenant_id, _periods.c.month == check_month(month))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RowNotFound(f"the tenant has no period {month}: it has no usage and no correction", "month")
    return Period(*row)


def by_id(connection: sa.Connection, period_id: str) -> Period | None:
    row = connection.execute(sa.select(_periods).where(_periods.c.id == period_id)).one_or_none()
    return None if row is None else Period(*row)


def list_periods(
    connection: sa.Connection,
    *,
    tenant_id: str | None = None,
    month: str | None = None,
    state: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int = LIST_MAX,
) -> list[Period]:
    """Periods in the order of (start_at, id); a page begins after the pair `after`."""
    query = sa.select(_periods).order_by(_periods.c.start_at, _periods.c.id).limit(min(limit, LIST_MAX))
    for name, value in (("tenant_id", tenant_id), ("month", month), ("state", state)):
        if value is not None:
            query = query.where(_periods.c[name] == value)
    if after is not None:
        query = query.where(sa.tuple_(_periods.c.start_at, _periods.c.id) > after)
    return [Period(*row) for row in connection.execute(query)]


def ensure(connection: sa.Connection, spans: Mapping[str, tuple[int, int]], now: int) -> None:
    """Create missing periods from each tenant's first to its last moment. Call it with the cursor locked."""
    tenants = tables.tenants
    query = sa.select(tenants.c.id, tenants.c.time_zone).where(tenants.c.id.in_(spans))
    zones = {row.id: row.time_zone for row in connection.execute(query)}
    newest = _newest(connection, list(spans))
    made: list[Period] = []
    for tenant_id, (first, last) in spans.items():
        period = newest.get(tenant_id)
        count = len(made)
        while period is None or period.end_at <= last:
            period = _following(tenant_id, zones[tenant_id], period, first, now)
            made.append(period)
            assert len(made) - count <= MADE_AT_ONCE_MAX, f"usage of {tenant_id} dated {rfc3339(last)}"
    if made:
        connection.execute(sa.insert(_periods), [msgspec.structs.asdict(period) for period in made])


def period_at(connection: sa.Connection, tenant_id: str, moment: int) -> Period:
    """The period of `moment`, created if it is missing."""
    ensure(connection, {tenant_id: (moment, moment)}, moment)
    query = sa.select(_periods).where(
        _periods.c.tenant_id == tenant_id, _periods.c.end_at > moment, _periods.c.state == "open"
    )
    return Period(*connection.execute(query.order_by(_periods.c.start_at).limit(1)).one())


def period_of_usage(connection: sa.Connection, request_id: str) -> Period | None:
    """The period that counts a settled request; None: its usage is not folded, and no period was made for it yet."""
    query = sa.select(_periods).join(_usage, usage_in_period()).where(_usage.c.request_id == request_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else Period(*row)


def first_open(connection: sa.Connection, tenant_id: str) -> Period | None:
    """The tenant's first open period, the next to be closed."""
    query = sa.select(_periods).where(_periods.c.tenant_id == tenant_id, _periods.c.state == "open")
    row = connection.execute(query.order_by(_periods.c.start_at).limit(1)).one_or_none()
    return None if row is None else Period(*row)


def open_period_starts() -> sa.Subquery:
    """The open periods with the columns id, tenant_id, from_at, end_at. A period counts usage with from_at ≤
    finished_at < end_at. from_at is start_at, except in a tenant's first open period, which counts all earlier usage
    too."""
    before = sa.func.lag(_periods.c.start_at).over(partition_by=_periods.c.tenant_id, order_by=_periods.c.start_at)
    return (
        sa.select(
            _periods.c.id,
            _periods.c.tenant_id,
            sa.case((before.is_(None), -SEQUENCE_MAX), else_=_periods.c.start_at).label("from_at"),
            _periods.c.end_at,
        )
        .where(_periods.c.state == "open")
        .subquery("takers")
    )


def _newest(connection: sa.Connection, tenant_ids: list[str]) -> dict[str, Period]:
    last = (
        sa.select(_periods.c.tenant_id, sa.func.max(_periods.c.start_at).label("start_at"))
        .where(_periods.c.tenant_id.in_(tenant_ids))
        .group_by(_periods.c.tenant_id)
        .subquery()
    )
    query = sa.select(_periods).join(
        last, sa.and_(last.c.tenant_id == _periods.c.tenant_id, last.c.start_at == _periods.c.start_at)
    )
    rows: list[Any] = list(connection.execute(query).all())
    return {row.tenant_id: Period(*row) for row in rows}


def _following(tenant_id: str, time_zone: str, before: Period | None, first: int, now: int) -> Period:
    """The period after `before`, or without it the tenant's first period, the month of the moment `first`. After a
    change of the time zone the period may be some hours longer or shorter than a month; the month at its middle names
    it."""
    zone = zone_of(time_zone)
    start = window_start("month", first, zone) if before is None else before.end_at
    middle = start + HALF_MONTH
    end = window_end("month", window_start("month", middle, zone), zone)
    assert end is not None
    assert end > start
    if before is None:
        late_after: int | None = 0
    else:
        late_after = before.closed_sequence
    month = to_datetime(middle).astimezone(zone).strftime("%Y-%m")
    return Period(new_id("per"), tenant_id, month, time_zone, start, end, "open", now, late_after)
