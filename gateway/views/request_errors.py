"""Refused and failed requests among all requests, in pages. A request with a hold and an error is one row: its hold's,
with the error beside it. This module only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.books import history
from billing.books.history import RequestCursor, RequestFilter, RequestRow
from gateway.error_tables import request_errors
from gateway.generation.endings import FAILED_ENDINGS, REFUSED_ENDINGS, Outcome

ErrorOutcome = Literal["refused", "failed"]

_errors, _holds = request_errors.c, tables.holds
_SELECT = sa.select(*request_errors.c)


class ErrorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `request_errors`."""

    request_id: str
    at: int
    duration_s: float
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str | None
    tier: str
    route: str
    outcome: ErrorOutcome
    status: int
    code: str
    param: str | None
    limit_name: str | None
    limit_value: int | None
    message: str | None
    retry_after_s: int | None

    @property
    def place(self) -> RequestCursor:
        return RequestCursor(False, self.at, self.request_id)


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`of`: what requests with a hold and errors without one have in common. `outcome` None: any. `code`: only requests
    with such an error."""

    of: RequestFilter
    outcome: Outcome | None = None
    code: str | None = None


ListedRequest = tuple[RequestRow | ErrorRow, ErrorRow | None]


def list_requests_and_errors(
    connection: sa.Connection, which: RequestQuery, *, after: RequestCursor | None, limit: int
) -> tuple[list[ListedRequest], RequestCursor | None]:
    """A page of requests with holds and of errors without one, in the order of `history.list_request_rows`; each with
    its error, if it has one. Also returns the cursor of the next page, or None at the end."""
    rows: list[RequestRow | ErrorRow] = []
    more = None
    if which.code is None:
        found, more = history.list_request_rows(connection, _with_outcome(which), after=after, limit=limit)
        rows += found
    if _has_errors(which):
        rows += _page_of_errors(connection, which, None if after is None or after.running else after, limit + 1)
    rows.sort(key=lambda row: (row.place.running, row.place.at, row.place.request_id), reverse=True)
    cut = rows[:limit]
    following = cut[-1].place if len(rows) > limit or (more is not None and cut) else None
    with_hold = [row.request_id for row in cut if isinstance(row, RequestRow)]
    errors = errors_of(connection, with_hold)
    return [(row, row if isinstance(row, ErrorRow) else errors.get(row.request_id)) for row in cut], following


def errors_of(connection: sa.Connection, request_ids: Iterable[str]) -> Mapping[str, ErrorRow]:
    """Errors by request id; requests without an error are absent."""
    query = _SELECT.where(_errors.request_id.in_(list(request_ids)))
    return {row.request_id: _row(row) for row in connection.execute(query)}


def _with_outcome(which: RequestQuery) -> RequestFilter:
    match which.outcome:
        case "served":
            return msgspec.structs.replace(which.of, other_endings=FAILED_ENDINGS + REFUSED_ENDINGS)
        case "refused":
            return msgspec.structs.replace(which.of, endings=REFUSED_ENDINGS)
        case "failed":
            return msgspec.structs.replace(which.of, endings=FAILED_ENDINGS)
        case _:
            return which.of


def _has_errors(which: RequestQuery) -> bool:
    """Whether an error without a hold can match: it has no status, ending, adapter, batch or first token."""
    of = which.of
    unmatched = (of.status, of.ending, of.adapter, of.batch_id, of.of_batch or None, of.min_ttft_s)
    return which.outcome != "served" and all(value is None for value in unmatched)


def _page_of_errors(
    connection: sa.Connection, which: RequestQuery, after: RequestCursor | None, limit: int
) -> list[ErrorRow]:
    of, query = which.of, _SELECT
    for name, value in of.names().items():
        query = query.where(_errors[name] == value)
    for column, given in ((_errors.request_id, of.request_id), (_errors.outcome, which.outcome)):
        if given is not None:
            query = query.where(column == given)
    if which.code is not None:
        query = query.where(_errors.code == which.code)
    else:
        query = query.where(~sa.exists().where(_holds.c.request_id == _errors.request_id))
    if of.start is not None:
        query = query.where(_errors.at >= of.start)
    if of.end is not None:
        query = query.where(_errors.at < of.end)
    if after is not None:  # the first condition is for the index
        place = sa.tuple_(_errors.at, _errors.request_id) < sa.tuple_(after.at, after.request_id)
        query = query.where(_errors.at <= after.at, place)
    query = query.order_by(_errors.at.desc(), _errors.request_id.desc()).limit(limit)
    return [_row(row) for row in connection.execute(query)]


def _row(row: sa.Row[Any]) -> ErrorRow:
    return ErrorRow(**row._mapping)
