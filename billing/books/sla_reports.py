"""SLA reports: the requests within their targets, by tier or by tier and model, for each day of a time zone and for all
of its days together. A report adds up quarter-hours (sla.py); this module only reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing.accounts import tenants
from billing.books import sla
from billing.books.sketch import DurationSketch
from billing.books.sla import OBJECTIVE, QUARTER, SKETCHES
from billing.clock import database_now, is_time_zone, midnight, to_datetime, zone_of
from billing.errors import InvalidValue
from billing.sla_tables import SLA_COUNTS, sla_quarters
from billing.tables import NONE

DAYS_MAX = 400
READ_AT_ONCE = 1000  # rows
Verdict = Literal["kept", "missed", "not_measured", "no_traffic"]
Grouping = Literal["tier", "model"]
Period = Literal["yesterday", "7d", "30d", "90d", "this_month", "last_month"]

_quarters = sla_quarters
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class SlaQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant_id` None: all tenants together. `start_date` and `end_date`: the first and the last day, as 2026-01-31;
    without them the days of `period`. `time_zone`: an IANA name; without one the tenant's own, UTC for all
    tenants. `by` model: a group for each tier and model."""

    tenant_id: str | None = None
    tier: str | None = None
    model: str | None = None
    start_date: str | None = None
    end_date: str | None = None
    period: Period = "30d"
    time_zone: str | None = None
    by: Grouping = "tier"


class SlaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of an interval. `requests`: settled ones; of these, `ttft_measured` have a target for the first
    token, and `itl_measured` also have a second token; `…_within` were within their target. `refused`: with a 503, and
    `unanswered`: without a first token because the server failed, or because the caller left after the target had
    passed; neither is among `requests`. Percentiles in milliseconds, each with a relative error of at most 1 %: of the
    time from the request's arrival at the gateway to its first token, of the mean time between its tokens, and of its
    longest pause between two tokens. Null: nothing was measured."""

    verdict: Verdict
    requests: int
    ttft_measured: int
    ttft_within: int
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    itl_measured: int
    itl_within: int
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    pause_p99_ms: float | None
    preemptions: int
    refused: int
    unanswered: int


class SlaDay(SlaFigures, frozen=True, kw_only=True):
    """One day of the time zone: start_at ≤ moment < end_at, in microseconds UTC."""

    date: str
    start_at: int
    end_at: int


class SlaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The days of one tier, or of one tier and model, and all of them `total`."""

    tier: str
    model: str | None
    total: SlaFigures
    days: list[SlaDay]


class SlaReport(msgspec.Struct, frozen=True, kw_only=True):
    """`recorded_since`: the first quarter-hour of any tenant; None: no such row exists yet. `folded_at`: requests that
    were settled until then are in the report."""

    tenant_id: str | None
    time_zone: str
    start_date: str
    end_date: str
    recorded_since: int | None
    folded_at: int
    groups: list[SlaGroup]


class _Interval:
    """Sums of quarter-hours."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(SLA_COUNTS, 0)
        self.sketches = {name: DurationSketch() for name in SKETCHES}

    def add_quarter(self, row: Sequence[Any]) -> None:
        """`row`: SLA_COUNTS and SKETCHES."""
        counts = self.counts
        for name, count in zip(SLA_COUNTS, row, strict=False):
            counts[name] += count
        for sketch, data in zip(self.sketches.values(), row[len(SLA_COUNTS) :], strict=True):
            sketch.merge_encoded(data)

    def add_interval(self, other: _Interval) -> None:
        for name, count in other.counts.items():
            self.counts[name] += count
        for name, sketch in other.sketches.items():
            self.sketches[name].merge_sketch(sketch)

    def figures(self) -> dict[str, object]:
        """The fields of SlaFigures."""
        quantiles = {
            f"{name}_p{part}_ms": _ms(self.sketches[f"{name}_sketch"].quantile_s(part / 100))
            for name, part in (*((name, part) for name in ("ttft", "itl") for part in (50, 95, 99)), ("pause", 99))
        }
        return {"verdict": verdict(self.counts), **self.counts, **quantiles}


def verdict(counts: dict[str, int]) -> Verdict:
    """Whether the promise was kept: at least OBJECTIVE of the requests that should have had a first token, and of the
    requests with a second token, were within their target. `counts`: by the names of SLA_COUNTS."""
    unserved = counts["refused"] + counts["unanswered"]
    if not counts["requests"] + unserved:
        return "no_traffic"
    if not counts["ttft_measured"] + unserved:
        return "not_measured"
    kept = is_kept(counts["ttft_within"], counts["ttft_measured"] + unserved)
    return "kept" if kept and is_kept(counts["itl_within"], counts["itl_measured"]) else "missed"


def shares(figures: SlaFigures) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two pairs of counts, within the target and in total: for the first token, which a request without a first token
    has missed, and between tokens."""
    promised = figures.ttft_measured + figures.refused + figures.unanswered
    return (figures.ttft_within, promised), (figures.itl_within, figures.itl_measured)


def is_kept(within: int, of: int) -> bool:
    return 100 * within >= round(100 * OBJECTIVE) * of


def make_sla_report(connection: sa.Connection, query: SlaQuery, tiers: Iterable[str] = ()) -> SlaReport:
    """`tiers`: each has a group even without requests, in this order, if the groups are tiers; groups of other tiers
    follow. Raises InvalidValue."""
    zone_name = query.time_zone or _zone_of(connection, query.tenant_id)
    if not is_time_zone(zone_name):
        raise InvalidValue(f"there is no time zone {zone_name!r}; write it as Europe/Berlin", "time_zone")
    zone = zone_of(zone_name)
    first, last = _dates(query, to_datetime(database_now(connection)).astimezone(zone).date())
    names = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    edges = [midnight(day, zone) for day in [*names, last + timedelta(days=1)]]
    found = _read(connection, query, edges)
    oldest = connection.execute(sa.select(sa.func.min(_quarters.c.quarter))).scalar_one()
    return SlaReport(
        tenant_id=query.tenant_id,
        time_zone=zone_name,
        start_date=first.isoformat(),
        end_date=last.isoformat(),
        recorded_since=None if oldest is None else int(oldest),
        folded_at=sla.read_cursor(connection).folded_at,
        groups=[
            _group(tier, model, names, edges, found.get((tier, model), {}))
            for tier, model in _ordered(found.keys(), [tier for tier in tiers if query.tier in (None, tier)], query.by)
        ],
    )


def figures_by_tier(connection: sa.Connection, tenant_id: str | None, start: int, end: int) -> dict[str, SlaFigures]:
    """The figures of each tier with requests, over whole quarter-hours: start ≤ quarter < end."""
    found = _read(connection, SlaQuery(tenant_id=tenant_id), [start, end])
    return {tier: SlaFigures(**days[0].figures()) for (tier, _), days in found.items()}  # type: ignore[arg-type]


def _zone_of(connection: sa.Connection, tenant_id: str | None) -> str:
    tenant = None if tenant_id is None else tenants.get_tenant(connection, tenant_id)
    return "UTC" if tenant is None else tenant.time_zone


def _dates(query: SlaQuery, today: date) -> tuple[date, date]:
    """The first and the last day. Raises InvalidValue."""
    if query.start_date is None and query.end_date is None:
        return _days_of(query.period, today)
    last = today if query.end_date is None else _date(query.end_date, "end_date")
    first = last if query.start_date is None else _date(query.start_date, "start_date")
    if not 0 <= (last - first).days < DAYS_MAX:
        raise InvalidValue(
            f"start_date is {first} and end_date {last}; the first day must not be after the last, and a report has at "
            f"most {DAYS_MAX} days",
            "start_date",
        )
    return first, last


def _days_of(period: Period, today: date) -> tuple[date, date]:
    """The first and the last day. Only `yesterday` and `last_month` have ended."""
    yesterday = today - timedelta(days=1)
    if period == "yesterday":
        return yesterday, yesterday
    if period == "this_month":
        return today.replace(day=1), today
    if period == "last_month":
        last = today.replace(day=1) - timedelta(days=1)
        return last.replace(day=1), last
    return today - timedelta(days=int(period.removesuffix("d")) - 1), today


def _date(text: str, param: str) -> date:
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        found = date.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"{text!r} is no date; write it as 2026-01-31", param) from None
    if not 1980 <= found.year <= 2500:  # zones of earlier years are not whole quarter-hours from UTC
        raise InvalidValue(f"{text!r} is not between 1980 and 2500", param)
    return found


def _read(
    connection: sa.Connection, query: SlaQuery, edges: Sequence[int]
) -> dict[tuple[str, str | None], dict[int, _Interval]]:
    """For each group, the sums between neighbouring `edges`, by index; intervals without requests are left out."""
    assert all(edge % QUARTER == 0 for edge in edges), "a day begins with a quarter-hour"
    columns = (_quarters.c[name] for name in ("quarter", "tier", "model", *SLA_COUNTS, *SKETCHES))
    rows = sa.select(*columns).where(
        _quarters.c.tenant_id == (query.tenant_id or NONE),
        _quarters.c.quarter >= edges[0],
        _quarters.c.quarter < edges[-1],
    )
    for name, value in (("tier", query.tier), ("model", query.model)):
        if value is not None:
            rows = rows.where(_quarters.c[name] == value)
    found: dict[tuple[str, str | None], dict[int, _Interval]] = {}
    index = 0
    # A year of all tenants has a million rows: they are not in memory at once.
    ordered = rows.order_by(_quarters.c.quarter).execution_options(yield_per=READ_AT_ONCE)
    for quarter, tier, model, *figures in connection.execute(ordered):
        while quarter >= edges[index + 1]:
            index += 1
        group = found.setdefault((tier, model if query.by == "model" else None), {})
        if (interval := group.get(index)) is None:
            interval = group[index] = _Interval()
        interval.add_quarter(figures)
    return found


def _ordered(
    found: Iterable[tuple[str, str | None]], tiers: Sequence[str], by: Grouping
) -> list[tuple[str, str | None]]:
    ranks = {tier: rank for rank, tier in enumerate(tiers)}
    groups = set(found) | ({(tier, None) for tier in tiers} if by == "tier" else set())
    return sorted(groups, key=lambda group: (ranks.get(group[0], len(ranks)), group[0], group[1] or ""))


def _group(
    tier: str, model: str | None, names: Sequence[date], edges: Sequence[int], intervals: dict[int, _Interval]
) -> SlaGroup:
    total = _Interval()
    days = []
    nothing = SlaFigures(**_Interval().figures())  # type: ignore[arg-type]
    for index, name in enumerate(names):
        figures = msgspec.structs.asdict(nothing)
        if (interval := intervals.get(index)) is not None:
            total.add_interval(interval)
            figures = interval.figures()
        days.append(SlaDay(**figures, date=name.isoformat(), start_at=edges[index], end_at=edges[index + 1]))
    return SlaGroup(tier=tier, model=model, total=SlaFigures(**total.figures()), days=days)  # type: ignore[arg-type]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 6)
