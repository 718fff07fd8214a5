"""/v1/admin/requests: finished and running requests, without the text of prompts and answers.

The database has such text only as replays: answers to idempotent calls, encrypted, for ten minutes (sealing.py).
"""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from litestar import get
from litestar.params import Parameter

from billing.books.history import RequestCursor, RequestFilter, Status
from billing.clock import SECOND
from billing.errors import RowNotFound
from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import InvalidRequest
from gateway.generation.endings import Outcome
from gateway.routes.admin.paging import (
    OF_BATCH,
    PAGE_DEFAULT,
    After,
    Limit,
    Moment,
    Name,
    TenantFilter,
    decode_cursor,
    encode_cursor,
)
from gateway.services import Services
from gateway.views import request_errors
from gateway.views.accounts import Page
from gateway.views.error_rates import BUCKETS_MAX, WIDTHS, ErrorRates, RateWidth, error_rates
from gateway.views.request_errors import ListedRequest, RequestQuery
from gateway.views.requests import RequestView, WholeRequestView, whole_request

INTEGER_MAX = 2**63 - 1
TTFT_S_MAX = 86_400
# A search by the time to the first token, or with or without lines of batches, reads every request of this time.
SLOW_SEARCH_S = 7 * 86_400
DEFAULT_BUCKETS: dict[RateWidth, int] = {"1h": 24, "1d": 30}


@get("/requests", opt={"route": "/v1/admin/requests", "area": "requests"})
async def list_requests(
    services: Services,
    by: Actor,
    status: Status | None = None,
    ending: Name = None,
    tenant: TenantFilter = None,
    project_id: Name = None,
    key_id: Name = None,
    model: Name = None,
    adapter: Name = None,
    tier: Name = None,
    batch: Name = None,
    start_time: Moment = None,
    end_time: Moment = None,
    search: Name = None,
    outcome: Outcome | None = None,
    code: Name = None,
    min_ttft_s: Annotated[float | None, Parameter(ge=0, le=TTFT_S_MAX)] = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[RequestView]:
    """Running requests, then ended ones, newest first; refused and failed ones too. Every given value must match:
    `search` is a whole request id, `ending` a value as in the rows (stop, length, client_left, …), `adapter` an id,
    `code` of an error (rate_limit_exceeded, …); start_time ≤ end of the request < end_time. `batch`: the id of a batch,
    whose settled lines are listed; `any`: lines of all batches, also those that run; `none`: all requests but these. Of
    one tenant's refused and failed requests, at most 10 a second are listed; `/v1/admin/error_rates` counts all.
    `min_ttft_s`: settled requests whose first token took at least this time. With `min_ttft_s`, or with `batch` `any`
    or `none`, and without start_time, requests of the last 7 days are listed. Prompts and answers are not stored."""
    begin = None if after is None else _cursor(after)
    of_batch = OF_BATCH.get(batch or "")
    if (min_ttft_s is not None or of_batch is not None) and start_time is None:
        last = int(services.watch.now_s()) if end_time is None else end_time
        start_time = max(0, last - SLOW_SEARCH_S)

    def query(connection: sa.Connection) -> tuple[list[ListedRequest], RequestCursor | None]:
        which = RequestFilter(
            status=status,
            ending=ending,
            request_id=search or None,
            tenant_id=visible_tenant(connection, by, tenant),
            project_id=project_id,
            key_id=key_id,
            model=model,
            adapter=adapter,
            tier=tier,
            batch_id=None if of_batch is not None else batch or None,
            of_batch=of_batch,
            start=None if start_time is None else start_time * SECOND,
            end=None if end_time is None else end_time * SECOND,
            min_ttft_s=min_ttft_s,
        )
        whole = RequestQuery(of=which, outcome=outcome, code=code or None)
        return request_errors.list_requests_and_errors(connection, whole, after=begin, limit=limit)

    found, following = await services.database.report(query)
    next_page = None if following is None else encode_cursor(following)
    return Page(
        data=[RequestView.of(row, error) for row, error in found], has_more=next_page is not None, next_page=next_page
    )


@get("/requests/{request_id:str}", opt={"route": "/v1/admin/requests/{request_id}", "area": "requests"})
async def get_request(services: Services, by: Actor, request_id: str) -> WholeRequestView:
    """One request with its hold, its ledger entries and its corrections, the error that its caller got, and why it was
    slow. Of a request that was refused or failed before its hold, the error."""
    tiers = {tier.name: tier for tier in services.first_tokens.tiers}

    def query(connection: sa.Connection) -> WholeRequestView:
        view = whole_request(connection, request_id, tiers)
        if not by.sees(view.tenant_id):
            raise RowNotFound(f"there is no request {request_id!r}")
        return view

    return await services.database.read(query)


@get("/error_rates", opt={"route": "/v1/admin/error_rates", "area": "requests"})
async def list_error_rates(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    key_id: Name = None,
    width: RateWidth = "1h",
    start_time: Moment = None,
    end_time: Moment = None,
) -> ErrorRates:
    """Refused and failed requests by code in UTC hours or days, beside the settled requests. start_time and end_time
    are rounded outwards to whole buckets, at most 400; by default the last 24 hours or 30 days. Requests with an
    unknown key are not counted here, but in the metric laneway_requests_refused_total."""
    step = WIDTHS[width] // SECOND
    now = int(services.watch.now_s())
    end = -(-(now if end_time is None else end_time) // step) * step
    start = end - DEFAULT_BUCKETS[width] * step if start_time is None else start_time // step * step
    if not 0 < (end - start) // step <= BUCKETS_MAX:
        count = max(0, (end - start) // step)
        raise InvalidRequest(
            f"From 'start_time' to 'end_time' there are {count} buckets of {width}; the limit is 1 to {BUCKETS_MAX}.",
            param="start_time",
        )

    def query(connection: sa.Connection) -> ErrorRates:
        tenant_id = visible_tenant(connection, by, tenant)
        return error_rates(
            connection, start=start * SECOND, end=end * SECOND, width=width, tenant_id=tenant_id, key_id=key_id or None
        )

    return await services.database.report(query)


def _cursor(after: str) -> RequestCursor:
    found = decode_cursor(after, RequestCursor)
    if abs(found.at) > INTEGER_MAX or "\0" in found.request_id:
        raise InvalidRequest(f"'page' is {after!r}, which is not a page of this list.", param="page")
    return found
