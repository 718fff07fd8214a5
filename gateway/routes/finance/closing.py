"""/v1/admin/periods/closable and close_all, for one month of all tenants; /v1/admin/connectors."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from litestar import get, post
from msgspec import Struct

from billing.books import invoices, periods
from billing.books.invoices import Closable, Invoice
from billing.errors import InvalidValue, NotPossibleYet, RowNotFound
from gateway.admin.administration import Administration
from gateway.admin.documents import ConnectorRelease
from gateway.routes.admin.finance import EVERYONES, period_cursor
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit
from gateway.services import Services
from gateway.views.accounts import Page, make_page
from gateway.views.finance import ClosableView, ConnectorView, InvoiceView

CLOSED_AT_ONCE = 100  # periods of one request; each is closed in a separate transaction


class MonthClosing(Struct, forbid_unknown_fields=True):
    """A month to close for all tenants. `after`: `next` of the previous answer; by default from the first tenant."""

    month: str
    after: str | None = None


class RefusedClosing(msgspec.Struct, frozen=True, kw_only=True):
    """A period that remains open, and the reason."""

    tenant_id: str
    reason: str


class ClosedMonth(msgspec.Struct, frozen=True, kw_only=True):
    """`closed`: invoices of the periods that this request closed. `refused`: periods that cannot be closed. `next`
    null: there are no more open periods of the month."""

    month: str
    closed: list[InvoiceView]
    refused: list[RefusedClosing]
    next: str | None


@get("/periods/closable", opt={"route": "/v1/admin/periods/closable", **EVERYONES})
async def list_closable(
    services: Services, month: str, limit: Limit = PAGE_DEFAULT, after: After = None
) -> Page[ClosableView]:
    """The open periods of a month with their amounts so far, and the reason why a period cannot be closed."""
    begin = period_cursor(after)

    def query(connection: sa.Connection) -> list[Closable]:
        return invoices.closable(connection, month, after=begin, limit=limit + 1)

    found = await services.database.report(query)
    return make_page(found, limit, ClosableView.of, lambda one: f"{one.period.start_at}-{one.period.id}")


@post("/periods/close_all", opt={"route": "/v1/admin/periods/close_all", **EVERYONES}, status_code=200)
async def close_all(services: Services, administration: Administration, data: MonthClosing) -> ClosedMonth:
    """Close a month permanently for all tenants, CLOSED_AT_ONCE periods a request. A period that cannot be closed
    remains open; all others are closed."""
    begin = period_cursor(data.after)
    found = await services.database.read(
        lambda c: periods.list_periods(
            c, month=periods.check_month(data.month), state="open", after=begin, limit=CLOSED_AT_ONCE + 1
        )
    )
    closed: list[InvoiceView] = []
    refused: list[RefusedClosing] = []
    for period in found[:CLOSED_AT_ONCE]:

        def close(connection: sa.Connection, tenant_id: str = period.tenant_id) -> Invoice:
            return administration.periods.close(connection, tenant=tenant_id, month=data.month)

        try:
            closed.append(InvoiceView.of(await services.database.write_in_background(close)))
        except (InvalidValue, NotPossibleYet) as refusal:
            refused.append(RefusedClosing(tenant_id=period.tenant_id, reason=refusal.message))
    following = None
    if len(found) > CLOSED_AT_ONCE:
        last = found[CLOSED_AT_ONCE - 1]
        following = f"{last.start_at}-{last.id}"
    return ClosedMonth(month=data.month, closed=closed, refused=refused, next=following)


@get("/connectors", opt={"route": "/v1/admin/connectors", **EVERYONES})
async def list_connectors(services: Services) -> Page[ConnectorView]:
    """The connectors of laneway.toml and connectors that have run, with their waiting and stuck amounts, the next retry
    and the last error."""
    sections = services.config.connectors
    found = await services.database.report(lambda c: ConnectorView.read_all(c, sections))
    return make_page(found, len(found), lambda view: view, lambda view: view.name)


@get("/connectors/{name:str}", opt={"route": "/v1/admin/connectors/{name}", **EVERYONES})
async def get_connector(services: Services, name: str) -> ConnectorView:
    """One connector of laneway.toml, or that has run, by its name."""
    sections = services.config.connectors
    for view in await services.database.report(lambda c: ConnectorView.read_all(c, sections)):
        if view.name == name:
            return view
    raise RowNotFound(f"there is no connector {name!r}", "name")


@post(
    "/connectors/{name:str}/release",
    opt={"route": "/v1/admin/connectors/{name}/release", **EVERYONES},
    status_code=200,
)
async def release_connector(services: Services, administration: Administration, name: str) -> ConnectorRelease:
    """Send a connector's stuck events again, with their identifiers and amounts. First check that the other system
    does not have the events: it may have forgotten the identifiers."""
    return await services.database.write_in_background(
        lambda c: administration.documents.release_connector(c, name=name)
    )
