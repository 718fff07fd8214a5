"""/v1/admin/requests: finished and running requests, without the text of prompts and answers.

The database has such text only as replays: answers to idempotent calls, encrypted, for ten minutes (sealing.py).
"""

from __future__ import annotations

import sqlalchemy as sa
from litestar import get

from billing.books import history
from billing.books.history import RequestCursor, RequestFilter, RequestRow, Status
from billing.clock import SECOND
from billing.errors import RowNotFound
from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import InvalidRequest
from gateway.routes.admin.paging import (
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
from gateway.views.accounts import Page
from gateway.views.requests import RequestView, WholeRequestView

INTEGER_MAX = 2**63 - 1


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
    start_time: Moment = None,
    end_time: Moment = None,
    search: Name = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[RequestView]:
    """Running requests, then finished ones, newest first. Every given value must match: `search` is a whole request id,
    `ending` a value as in the rows (stop, length, client_left, …), `adapter` an id; start_time ≤ end of the request <
    end_time. Prompts and answers are not stored."""
    begin = None if after is None else _cursor(after)

    def query(connection: sa.Connection) -> tuple[list[RequestRow], RequestCursor | None]:
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
            start=None if start_time is None else start_time * SECOND,
            end=None if end_time is None else end_time * SECOND,
        )
        return history.page(connection, which, after=begin, limit=limit)

    found, following = await services.database.report(query)
    next_page = None if following is None else encode_cursor(following)
    return Page(data=[RequestView.of(row) for row in found], has_more=next_page is not None, next_page=next_page)


@get("/requests/{request_id:str}", opt={"route": "/v1/admin/requests/{request_id}", "area": "requests"})
async def get_request(services: Services, by: Actor, request_id: str) -> WholeRequestView:
    """One request with its hold, its ledger entries and its corrections."""

    def query(connection: sa.Connection) -> WholeRequestView:
        found = history.get(connection, request_id)
        if not by.sees(found.request.tenant_id):
            raise RowNotFound(f"there is no request {request_id!r}")
        return WholeRequestView.of_request(found)

    return await services.database.read(query)


def _cursor(after: str) -> RequestCursor:
    found = decode_cursor(after, RequestCursor)
    if abs(found.at) > INTEGER_MAX or "\0" in found.request_id:
        raise InvalidRequest(f"'page' is {after!r}, which is not a page of this list.", param="page")
    return found
