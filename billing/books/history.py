"""The history of requests in pages: first the running requests, then the ended requests, newest ending first; and all
data of one request. Prompts and answers are not in the database.

The time for a page does not depend on the number of requests: a page continues an index from the end of the previous
page, and the roll-ups have the hours in which a model, an adapter or a tier had requests.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.tags import has_tags, source_filter
from billing.books import corrections, rollups, usage
from billing.books.corrections import Correction
from billing.books.rollups import HOUR
from billing.books.usage import MOMENT_MAX, UsageRow
from billing.errors import RowNotFound

Status = Literal["held", "settled", "voided", "expired"]
LIMIT_MAX = 1000
COMMON = ("stop", "length")  # endings of most requests; an index for them would not help

_holds = tables.holds
_usage = tables.usage
_hours = tables.usage_hours
_SHARED = ("request_id", "tenant_id", "project_id", "key_id", "model", "adapter", "tier", "prompt_tokens")
MEASURED = (
    "cached_tokens",
    "completion_tokens",
    "currency",
    "cost_picos",
    "queue_s",
    "ttft_s",
    "device_s",
    "preemptions",
    "trace_id",
    "asked",
    "adapter_version",
    "batch_id",
)


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Every given value must match, and `start` ≤ moment < `end`, in microseconds UTC. The moment is the request's
    ending, or its beginning while it runs. `batch_id`: only settled lines of this batch. `of_batch`: only lines of
    batches (True), or all requests but these (False). `endings`: only requests with one of these endings;
    `other_endings`: only ended requests with none of these endings. `min_ttft_s`: only settled requests whose first
    token arrived at the gateway after at least this time. A search with `min_ttft_s` or `of_batch` reads every request
    of the interval, so `start` should bound it."""

    status: Status | None = None
    ending: str | None = None
    endings: tuple[str, ...] | None = None
    other_endings: tuple[str, ...] | None = None
    request_id: str | None = None
    tenant_id: str | None = None
    project_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    batch_id: str | None = None
    of_batch: bool | None = None
    start: int | None = None
    end: int | None = None
    min_ttft_s: float | None = None

    @property
    def by_ending(self) -> bool:
        return any(given is not None for given in (self.ending, self.endings, self.other_endings))

    def names(self) -> dict[str, str]:
        """The filters whose columns the roll-ups have too."""
        given = (
            (name, getattr(self, name)) for name in ("tenant_id", "project_id", "key_id", "model", "adapter", "tier")
        )
        return {name: value for name, value in given if value is not None}


class RequestCursor(msgspec.Struct, frozen=True, array_like=True):
    """The last request of a page. `at`: as in RequestRow."""

    running: bool
    at: int
    request_id: str


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Measured values are None until it is settled. `at`: the moment of its ending, or of its beginning
    while it runs. Moments in microseconds UTC."""

    request_id: str
    status: Status
    ending: str | None
    tenant_id: str
    project_id: str | None
    key_id: str
    model: str
    adapter: str | None
    tier: str
    prompt_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    currency: str | None = None
    cost_picos: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    device_s: float | None = None
    preemptions: int | None = None
    trace_id: str | None = None  # also None for a request without a trace
    asked: str | None = None  # the model that the request named, if an alias or a fallback replaced it
    adapter_version: int | None = None
    batch_id: str | None = None  # of a line of a batch
    started_at: int
    at: int

    @property
    def place(self) -> RequestCursor:
        return RequestCursor(self.status == "held", self.at, self.request_id)


class LedgerEntry(msgspec.Struct, frozen=True):
    """One line of the double-entry ledger."""

    transaction_id: str
    account: str
    meter: str | None
    amount_picos: int
    currency: str
    recorded_at: int


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """The amount reserved for a request, and the budget windows in which it counts (budget id, start)."""

    gateway_id: str
    price_version_id: str
    max_tokens: int
    hold_picos: int
    settled_picos: int
    lost_tokens: int
    held_at: int
    ended_at: int | None
    windows: list[tuple[str, int]]


class WholeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All data of one request. `usage` None: it was not settled."""

    request: RequestRow
    hold: Hold
    usage: UsageRow | None
    entries: list[LedgerEntry]
    corrections: list[Correction]


def list_request_rows(
    connection: sa.Connection, which: RequestFilter, *, after: RequestCursor | None = None, limit: int = 100
) -> tuple[list[RequestRow], RequestCursor | None]:
    """A page, and the cursor of the next page; None at the end."""
    limit = min(limit, LIMIT_MAX)
    found: list[RequestRow] = []
    # The holds name no batch, and have no first token.
    if which.min_ttft_s is not None or which.batch_id is not None:
        if which.status not in (None, "settled"):
            return [], None
        which = msgspec.structs.replace(which, status="settled")
    if which.status in (None, "held") and not which.by_ending and (after is None or after.running):
        found = _unsettled(connection, which, _holds.c.held_at, _holds.c.state == "held", after, limit + 1)
    ended_after = None if after is None or after.running else after
    if len(found) <= limit and which.status != "held":
        more: dict[str, RequestRow] = {}
        if which.status in (None, "settled"):
            more |= {row.request_id: row for row in _settled(connection, which, ended_after, limit + 1)}
        if which.status != "settled":
            others = _unsettled(connection, which, _holds.c.ended_at, _state(which), ended_after, limit + 1)
            more |= {row.request_id: row for row in others}
        found += sorted(more.values(), key=lambda row: (row.at, row.request_id), reverse=True)
    return found[:limit], found[limit - 1].place if len(found) > limit else None


def get_whole_request(connection: sa.Connection, request_id: str) -> WholeRequest:
    """Raises RowNotFound."""
    row = connection.execute(sa.select(_holds).where(_holds.c.request_id == request_id)).one_or_none()
    if row is None:
        raise RowNotFound(f"there is no request {request_id!r}")
    measured = usage.get_usage_row(connection, request_id)
    made = corrections.list_corrections(connection, request_id=request_id)
    charges, entries = tables.hold_charges, tables.entries
    windows = sa.select(charges.c.budget_id, charges.c.window_start).where(charges.c.request_id == request_id)
    lines = sa.select(*(entries.c[name] for name in LedgerEntry.__struct_fields__))
    lines = lines.where(entries.c.transaction_id.in_([request_id, *(one.id for one in made)]))
    fields = {name: getattr(row, name) for name in Hold.__struct_fields__ if name != "windows"}
    return WholeRequest(
        request=_of_hold(row, _holds.c.ended_at.name) if measured is None else _of_usage(measured),
        hold=Hold(**fields, windows=[(one.budget_id, one.window_start) for one in connection.execute(windows)]),
        usage=measured,
        entries=[LedgerEntry(*line) for line in connection.execute(lines.order_by(entries.c.sequence))],
        corrections=made,
    )


def _state(which: RequestFilter) -> sa.ColumnElement[bool]:
    return tables.UNSETTLED if which.status is None else sa.and_(tables.UNSETTLED, _holds.c.state == which.status)


def _unsettled(
    connection: sa.Connection,
    which: RequestFilter,
    moment: sa.Column[Any],
    state: sa.ColumnElement[bool],
    after: RequestCursor | None,
    limit: int,
) -> list[RequestRow]:
    of_source = has_tags(_holds.c.tag_set_id, source_filter(which.of_batch))
    query = sa.select(_holds).where(state, *_conditions(which, _holds, moment), *of_source)
    if after is not None:
        query = query.where(sa.tuple_(moment, _holds.c.request_id) < sa.tuple_(after.at, after.request_id))
    query = query.order_by(moment.desc(), _holds.c.request_id.desc()).limit(limit)
    return [_of_hold(row, moment.name) for row in connection.execute(query)]


def _settled(
    connection: sa.Connection, which: RequestFilter, after: RequestCursor | None, limit: int
) -> list[RequestRow]:
    moment = _usage.c.finished_at
    query = sa.select(_usage).where(*_conditions(which, _usage, moment))
    endings = which.endings if which.ending is None else (which.ending,)
    if endings is not None and not set(endings) & set(COMMON):
        query = query.where(tables.UNUSUAL)
    if which.of_batch is not None:
        query = query.where(_usage.c.batch_id.is_not(None) if which.of_batch else _usage.c.batch_id.is_(None))
    if which.min_ttft_s is not None:
        query = query.where(_usage.c.ttft_s > 0, _usage.c.ttft_s >= which.min_ttft_s)
    if after is not None:
        # The first condition is for the index.
        place = sa.tuple_(moment, _usage.c.request_id) < sa.tuple_(after.at, after.request_id)
        query = query.where(moment <= after.at, place)
    query = query.order_by(moment.desc(), _usage.c.request_id.desc()).limit(limit)
    # The columns of keys and tenants have an index; for the others, the roll-ups limit the search.
    unindexed = which.key_id is None and which.batch_id is None and which.of_batch is None
    narrow = unindexed and bool(set(which.names()) - {"tenant_id"})
    if which.by_ending or which.request_id is not None or which.min_ttft_s is not None or not narrow:
        return [_of_usage(row) for row in connection.execute(query)]
    lowest = _lowest(connection, which, after, limit)
    rows = [] if lowest is None else connection.execute(query.where(moment >= lowest)).all()
    # Rows that are not folded yet may be of any hour.
    unfolded = query.where(_usage.c.sequence > rollups.read_cursor(connection).sequence)
    found = {row.request_id: row for row in [*rows, *connection.execute(unfolded)]}
    newest = sorted(found.values(), key=lambda row: (row.finished_at, row.request_id), reverse=True)
    return [_of_usage(row) for row in newest[:limit]]


def _lowest(connection: sa.Connection, which: RequestFilter, after: RequestCursor | None, limit: int) -> int | None:
    """The moment from which to search, by the roll-ups: the start of the hour that completes `limit` matching requests
    before `after`, or of the oldest matching hour. None: the roll-ups have no matching request."""
    ends = min(MOMENT_MAX if after is None else after.at + 1, which.end or MOMENT_MAX)
    query = sa.select(_hours.c.hour, sa.func.sum(_hours.c.requests)).where(_hours.c.hour < ends)
    if which.start is not None:
        query = query.where(_hours.c.hour >= which.start - which.start % HOUR)
    for name, value in which.names().items():
        query = query.where(_hours.c[name] == value)
    lowest, below = None, 0
    # Each hour of the roll-ups has at least one matching request.
    for hour, requests in connection.execute(
        query.group_by(_hours.c.hour).order_by(_hours.c.hour.desc()).limit(limit + 2)
    ):
        lowest = int(hour)
        if lowest + HOUR <= ends:  # in the last hour, some of the requests may be after `after`
            below += int(requests)
        if below >= limit:
            break
    return lowest


def _conditions(which: RequestFilter, table: sa.Table, moment: sa.Column[Any]) -> list[sa.ColumnElement[bool]]:
    values = which.names() | {
        name: value for name in ("request_id", "ending", "batch_id") if (value := getattr(which, name)) is not None
    }
    found: list[sa.ColumnElement[bool]] = [table.c[name] == value for name, value in values.items()]
    if which.endings is not None:
        found.append(table.c.ending.in_(which.endings))
    if which.other_endings is not None:
        found.append(table.c.ending.not_in(which.other_endings))
    if which.start is not None:
        found.append(moment >= which.start)
    if which.end is not None:
        found.append(moment < which.end)
    return found


def _of_hold(row: sa.Row[Any], moment: str) -> RequestRow:
    fields = {name: getattr(row, name) for name in _SHARED}
    at = row.held_at if row.state == "held" or row.ended_at is None else getattr(row, moment)
    return RequestRow(**fields, status=row.state, ending=row.ending, started_at=row.held_at, at=at)


def _of_usage(row: Any) -> RequestRow:
    fields = {name: getattr(row, name) for name in (*_SHARED, *MEASURED, "ending", "started_at")}
    fields["ttft_s"] = row.ttft_s or None  # 0: no token arrived at the gateway
    return RequestRow(**fields, status="settled", at=row.finished_at)
