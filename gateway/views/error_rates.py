"""Error rates: the requests that were refused or failed in each hour or day, by code, and the settled requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import reports
from billing.books.reports import ReportFilter
from billing.clock import DAY, SECOND
from gateway.error_tables import request_error_counts
from gateway.views.request_errors import ErrorOutcome

RateWidth = Literal["1h", "1d"]
WIDTHS: dict[RateWidth, int] = {"1h": DAY // 24, "1d": DAY}
BUCKETS_MAX = 400

_counts = request_error_counts.c


class _Error(NamedTuple):
    outcome: ErrorOutcome
    code: str


class _Count(NamedTuple):
    requests: int
    settled: int


_Errors = Mapping[_Error, _Count]


class CodeCount(msgspec.Struct, frozen=True):
    """Requests that ended with this error. Exact, also where most of them have no row of their own."""

    outcome: ErrorOutcome
    code: str
    requests: int


class RateBucket(msgspec.Struct, frozen=True, kw_only=True):
    """`requests`: all requests that ended in the bucket. `settled`: requests with usage, some of which failed later.
    The shares are parts of `requests`; null without requests."""

    start_time: int
    end_time: int
    requests: int
    settled: int
    refused: int
    failed: int
    refused_share: float | None
    failed_share: float | None
    errors: list[CodeCount]


class ErrorRates(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets of UTC hours or days, oldest first, without gaps. `total`: one bucket over all of them."""

    data: list[RateBucket]
    total: RateBucket
    object: Literal["list"] = "list"


def error_rates(
    connection: sa.Connection, *, start: int, end: int, width: RateWidth, tenant_id: str | None, key_id: str | None
) -> ErrorRates:
    """`start` and `end` in microseconds, multiples of the width; at most BUCKETS_MAX buckets."""
    step = WIDTHS[width]
    errors = _errors_by_bucket(connection, start, end, step, tenant_id, key_id)
    settled: dict[int, int] = {}
    which = ReportFilter(
        start=start,
        end=end,
        tenant_ids=() if tenant_id is None else (tenant_id,),
        key_ids=() if key_id is None else (key_id,),
    )
    for row in reports.buckets(connection, which, width=width, limit=BUCKETS_MAX).rows:  # one for each currency
        settled[row.bucket] = settled.get(row.bucket, 0) + row.requests
    summed: dict[_Error, _Count] = {}
    for found in errors.values():
        for error, count in found.items():
            before = summed.get(error, _Count(0, 0))
            summed[error] = _Count(before.requests + count.requests, before.settled + count.settled)
    return ErrorRates(
        data=[_bucket(at, at + step, settled.get(at, 0), errors.get(at, {})) for at in range(start, end, step)],
        total=_bucket(start, end, sum(settled.values()), summed),
    )


def rolled_up_rates(connection: sa.Connection, hour: int, tenant_id: str | None) -> RateBucket:
    """The bucket of one past hour. `settled` is read from the roll-ups alone, so requests that are not folded yet are
    left out."""
    step = WIDTHS["1h"]
    hours = tables.usage_hours.c
    query = sa.select(sa.func.coalesce(sa.func.sum(hours.requests), 0)).where(hours.hour == hour)
    if tenant_id is not None:
        query = query.where(hours.tenant_id == tenant_id)
    settled = int(connection.execute(query).scalar_one())
    errors = _errors_by_bucket(connection, hour, hour + step, step, tenant_id, None)
    return _bucket(hour, hour + step, settled, errors.get(hour, {}))


def _errors_by_bucket(
    connection: sa.Connection, start: int, end: int, step: int, tenant_id: str | None, key_id: str | None
) -> dict[int, dict[_Error, _Count]]:
    bucket = (_counts.quarter - _counts.quarter % sa.literal_column(str(step), sa.BigInteger)).label("bucket")
    sums = sa.func.sum(_counts.requests), sa.func.sum(_counts.settled)
    query = sa.select(bucket, _counts.outcome, _counts.code, *sums)
    query = query.where(_counts.quarter >= start, _counts.quarter < end)
    if tenant_id is not None:
        query = query.where(_counts.tenant_id == tenant_id)
    if key_id is not None:
        query = query.where(_counts.key_id == key_id)
    found: dict[int, dict[_Error, _Count]] = {}
    query = query.group_by(bucket, _counts.outcome, _counts.code)
    for at, outcome, code, requests, settled in connection.execute(query):
        found.setdefault(int(at), {})[_Error(outcome, code)] = _Count(int(requests), int(settled))
    return found


def _bucket(start: int, end: int, settled: int, errors: _Errors) -> RateBucket:
    counts = [CodeCount(error.outcome, error.code, count.requests) for error, count in errors.items()]
    counts.sort(key=lambda one: (-one.requests, one.outcome, one.code))
    refused, failed = (
        sum(one.requests for one in counts if one.outcome == outcome) for outcome in ("refused", "failed")
    )
    # Usage is written before the counts: for a second, a request may be in usage only.
    requests = max(settled + refused + failed - sum(count.settled for count in errors.values()), refused + failed)
    return RateBucket(
        start_time=start // SECOND,
        end_time=end // SECOND,
        requests=requests,
        settled=settled,
        refused=refused,
        failed=failed,
        refused_share=round(refused / requests, 6) if requests else None,
        failed_share=round(failed / requests, 6) if requests else None,
        errors=counts,
    )
