"""/v1/admin/periods, invoices, corrections, margins and reconciliations. Money is integer picos: 10⁻¹² of a currency
unit."""

from __future__ import annotations

from typing import Annotated, Literal

import sqlalchemy as sa
from litestar import get, post
from litestar.params import Parameter
from msgspec import Meta, Struct

from billing.accounts.prices import PICOS_MAX, REQUEST_TOKENS_MAX, Meter
from billing.books import corrections, invoices, periods
from billing.books.corrections import REASON_CHARS_MAX
from billing.books.margins import Margins
from billing.clock import database_now
from billing.errors import InvalidValue, RowNotFound
from billing.proofs import reconcile
from billing.proofs.reconcile import Reconciliation
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import InvalidRequest
from gateway.routes.admin.paging import (
    PAGE_DEFAULT,
    After,
    Limit,
    Name,
    Search,
    TenantFilter,
    decode_sequence,
    list_page,
    list_query,
    number_of,
)
from gateway.services import Services
from gateway.views.accounts import Page, make_page
from gateway.views.finance import (
    CorrectionView,
    InvoiceView,
    PeriodView,
    ReconciliationView,
    StandingView,
    WholeInvoiceView,
)

InvoiceSort = Literal[
    "period", "-period", "issued_at", "-issued_at", "total_picos", "-total_picos", "tenant_id", "-tenant_id"
]
EVERYONES = {"area": "billing", "everyones": True}  # routes about the books of all tenants
Month = Annotated[str | None, Parameter(max_length=7, description="for example 2026-01")]
PeriodState = Annotated[Literal["open", "closed"] | None, Parameter(query="state")]  # `state` is reserved
Tokens = Annotated[int, Meta(ge=-REQUEST_TOKENS_MAX, le=REQUEST_TOKENS_MAX)]
Picos = Annotated[int, Meta(ge=-PICOS_MAX, le=PICOS_MAX)]
Reason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]


class PeriodClosing(Struct, forbid_unknown_fields=True):
    """A tenant (id or slug) and a month of it, which must be its first open one and must have ended."""

    tenant: str
    month: str


class NewCorrection(Struct, forbid_unknown_fields=True):
    """Either of a request: `request_id`, `meter`, and the `tokens` to bill more (below 0: fewer) at the price they were
    billed at. Or free: `tenant` and `picos` (below 0: a credit, as `POST /v1/admin/credits` makes with a positive
    amount), and the names that it is about. `month`: of a free one, by default the current one."""

    reason: Reason
    request_id: str | None = None
    tokens: Tokens | None = None
    tenant: str | None = None
    picos: Picos | None = None
    project: str | None = None
    key_id: str | None = None
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    meter: Meter | None = None
    month: Annotated[str, Meta(max_length=7)] | None = None


@get("/periods", opt={"route": "/v1/admin/periods", "area": "billing"})
async def list_periods(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    month: Month = None,
    wanted_state: PeriodState = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[PeriodView]:
    """Billing periods by their start. A tenant's first period is that of its first usage."""
    begin = period_cursor(after)

    def query(connection: sa.Connection) -> list[periods.Period]:
        tenant_id = visible_tenant(connection, by, tenant)
        if month is not None:
            periods.check_month(month)
        return periods.list_periods(
            connection, tenant_id=tenant_id, month=month, state=wanted_state, after=begin, limit=limit + 1
        )

    found = await services.database.read(query)
    return make_page(found, limit, PeriodView.of, lambda period: f"{period.start_at}-{period.id}")


@get("/periods/{period_id:str}", opt={"route": "/v1/admin/periods/{period_id}", "area": "billing"})
async def get_period(services: Services, by: Actor, period_id: str) -> PeriodView:
    """One billing period, by id."""
    found = await services.database.read(lambda c: periods.by_id(c, period_id))
    if found is None or not by.sees(found.tenant_id):
        raise RowNotFound(f"there is no period {period_id!r}", "period_id")
    return PeriodView.of(found)


@post("/periods/close", opt={"route": "/v1/admin/periods/close", "area": "billing"}, status_code=200)
async def close_period(services: Services, administration: Administration, data: PeriodClosing) -> InvoiceView:
    """Close a month permanently and make its invoice. Usage that is settled later belongs to the next month."""
    made = await services.database.write_in_background(
        lambda c: administration.periods.close(c, tenant=data.tenant, month=data.month)
    )
    return InvoiceView.of(made)


@get("/invoices", opt={"route": "/v1/admin/invoices", "area": "billing"})
async def list_invoices(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    month: Month = None,
    search: Search = None,
    sort: InvoiceSort = "period",
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[InvoiceView]:
    """Invoices, of all tenants or of one."""
    wanted = list_query(sort, search, after, limit)
    found = await services.database.read(
        lambda c: invoices.query_invoices(c, wanted, tenant_id=visible_tenant(c, by, tenant), month=month)
    )
    return list_page(found, InvoiceView.of)


@get("/invoices/{invoice_id:str}", opt={"route": "/v1/admin/invoices/{invoice_id}", "area": "billing"})
async def get_invoice(services: Services, by: Actor, invoice_id: str) -> WholeInvoiceView:
    """One invoice, by its id or number, with its lines: usage by model or adapter, tier, meter and price, then
    corrections."""

    def query(connection: sa.Connection) -> WholeInvoiceView:
        found = invoices.get_invoice(connection, invoice_id)
        if not by.sees(found.tenant_id):
            raise RowNotFound(f"there is no invoice {invoice_id!r}")
        return WholeInvoiceView.read(connection, found)

    return await services.database.read(query)


@post("/corrections", opt={"route": "/v1/admin/corrections", "area": "billing"})
async def make_correction(services: Services, administration: Administration, data: NewCorrection) -> CorrectionView:
    """Add a correction. It counts in the period of the corrected usage while this period is open, otherwise in the
    current period. Settled usage does not change, and budgets do not count corrections."""
    others = ("tenant", "picos", "project", "key_id", "model", "adapter", "tier", "month")
    if data.request_id is not None:
        if wrong := [name for name in others if getattr(data, name) is not None]:
            raise InvalidValue("a correction of a request takes this from the request", wrong[0])
        meter, tokens = data.meter, data.tokens
        for name, value in (("meter", meter), ("tokens", tokens)):
            if value is None:
                raise InvalidValue(f"a correction of a request needs {name}", name)
        assert meter is not None
        assert tokens is not None
        request_id = data.request_id

        def correct(connection: sa.Connection) -> CorrectionView:
            made = administration.corrections.correct_request(
                connection, request_id=request_id, meter=meter, tokens=tokens, reason=data.reason
            )
            return CorrectionView.read(connection, [made])[0]

        return await services.database.write_in_background(correct)
    tenant, picos = data.tenant, data.picos
    if tenant is None or picos is None:
        raise InvalidValue(
            "a correction of no request needs a tenant and picos", "tenant" if tenant is None else "picos"
        )
    if data.tokens is not None:
        raise InvalidValue("a correction of tokens needs the request_id", "tokens")
    names = {name: getattr(data, name) for name in (*others[2:], "meter")}

    def correct_tenant(connection: sa.Connection) -> CorrectionView:
        made = administration.corrections.correct_tenant(
            connection, tenant=tenant, picos=picos, reason=data.reason, **names
        )
        return CorrectionView.read(connection, [made])[0]

    return await services.database.write_in_background(correct_tenant)


@get("/corrections", opt={"route": "/v1/admin/corrections", "area": "billing"})
async def list_corrections(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    request_id: Name = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[CorrectionView]:
    """Corrections in the order in which they were made."""
    begin = decode_sequence(after) or 0

    def query(connection: sa.Connection) -> Page[CorrectionView]:
        tenant_id = visible_tenant(connection, by, tenant)
        found = corrections.list_corrections(
            connection, tenant_id=tenant_id, request_id=request_id, after=begin, limit=limit + 1
        )
        views = {view.id: view for view in CorrectionView.read(connection, found)}
        return make_page(found, limit, lambda one: views[one.id], lambda one: str(one.sequence))

    return await services.database.read(query)


@get("/margins", opt={"route": "/v1/admin/margins", **EVERYONES})
async def tier_margins(
    services: Services, administration: Administration, month: Month = None, tenant: TenantFilter = None
) -> Margins:
    """The revenue of each tier in a month (by default the last whole month) and the cost of its device time. Time lost
    by a preemption is accounted to the tier that caused it."""
    return await services.database.report(lambda c: administration.periods.margins(c, month=month, tenant=tenant))


@get("/reconciliations", opt={"route": "/v1/admin/reconciliations", **EVERYONES})
async def list_reconciliations(
    services: Services, limit: Limit = PAGE_DEFAULT, after: After = None
) -> Page[ReconciliationView]:
    """Results of reconciliations, newest first. Gateways reconcile every minute."""
    before = decode_sequence(after)
    found = await services.database.read(lambda c: reconcile.list_reconciliations(c, before=before, limit=limit + 1))
    return make_page(found, limit, ReconciliationView.of, lambda result: str(result.number))


@get(
    "/reconciliations/standing",
    opt={"route": "/v1/admin/reconciliations/standing", **EVERYONES},
)
async def reconciliation_standing(services: Services) -> StandingView:
    """The open findings: those of the last whole reconciliation and of all since. Sound books have none."""
    return StandingView.of(await services.database.read(reconcile.open_findings))


@get("/reconciliations/{number:str}", opt={"route": "/v1/admin/reconciliations/{number}", **EVERYONES})
async def get_reconciliation(services: Services, number: str) -> ReconciliationView:
    """One stored result of a reconciliation, by its number."""
    result = await services.database.read(lambda c: reconcile.get_reconciliation(c, number_of(number)))
    if result is None:
        raise RowNotFound(f"there is no reconciliation {number!r}", "number")
    return ReconciliationView.of(result)


@post(
    "/reconciliations",
    opt={"route": "/v1/admin/reconciliations", **EVERYONES},
    status_code=200,
)
async def reconcile_now(services: Services, month: Month = None) -> ReconciliationView:
    """Reconcile a month, or the whole ledger, now. Every row of it is read."""

    def prove(connection: sa.Connection) -> Reconciliation:
        return (
            reconcile.reconcile_all(connection)
            if month is None
            else reconcile.reconcile_month(connection, month, database_now)
        )

    result = await services.database.report(prove)
    return ReconciliationView.of(
        await services.database.write_in_background(lambda c: reconcile.store_reconciliation(c, result))
    )


def period_cursor(after: str | None) -> tuple[int, str] | None:
    """The start and the id of the previous page's last period. Raises InvalidRequest."""
    if after is None:
        return None
    start, dash, period_id = after.partition("-")
    if not (dash and start.isascii() and start.isdigit() and len(start) < 19):
        raise InvalidRequest(f"'page' is {after!r}, which is not a page of this list.", param="page")
    return int(start), period_id
