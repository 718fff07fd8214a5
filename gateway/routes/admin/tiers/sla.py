"""/v1/admin/sla: whether the tiers kept their promises, by day, for one tenant or for all."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import sqlalchemy as sa
from litestar import Response, get
from litestar.params import Parameter

from billing.accounts import tenants
from billing.books import sla_reports
from billing.books.sla_reports import DAYS_MAX, Grouping, Period, SlaQuery
from gateway.admin.writes import Actor, visible_tenant
from gateway.routes.admin.paging import Name, TenantFilter
from gateway.services import Services
from gateway.views.sla import SlaView, file_name, sla_csv

StartDate = Annotated[
    str | None, Parameter(max_length=10, description="The first day, as 2026-01-31; by default the last day")
]
EndDate = Annotated[
    str | None, Parameter(max_length=10, description=f"The last day; by default today. At most {DAYS_MAX} days")
]
Days = Annotated[Period, Parameter(description="The days without a start_date and an end_date")]
GroupBy = Annotated[Grouping, Parameter(query="by", description="model: by tier and model")]
ZoneName = Annotated[
    str | None, Parameter(max_length=64, description="Of the days, an IANA name; by default the tenant's, else UTC")
]
MEDIA_TYPES = {"csv": "text/csv", "json": "application/json"}


@get("/sla", opt={"route": "/v1/admin/sla", "area": "usage"})
async def sla_report(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    tier: Name = None,
    model: Name = None,
    start_date: StartDate = None,
    end_date: EndDate = None,
    period: Days = "30d",
    time_zone: ZoneName = None,
    group: GroupBy = "tier",
) -> SlaView:
    """The requests within the targets for the first token and between tokens, each against the targets in force at its
    first token: exact counts and percentiles by day. Without a tenant: all tenants together; for an actor
    with a tenant, its own."""
    query = _query(tier, model, start_date, end_date, period, time_zone, group)
    return await _report(services, by, tenant, query)


@get("/sla/export", media_type="text/csv", opt={"route": "/v1/admin/sla/export", "area": "usage"})
async def export_sla(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    tier: Name = None,
    model: Name = None,
    start_date: StartDate = None,
    end_date: EndDate = None,
    period: Days = "30d",
    time_zone: ZoneName = None,
    group: GroupBy = "tier",
    form: Annotated[Literal["csv", "json"], Parameter(query="format")] = "csv",
) -> Response[bytes]:
    """The report of /v1/admin/sla as a file: csv has a line for each day of each group, json is the report itself."""
    query = _query(tier, model, start_date, end_date, period, time_zone, group)
    view = await _report(services, by, tenant, query)
    body = sla_csv(view).encode() if form == "csv" else msgspec.json.encode(view)
    headers = {"Content-Disposition": f'attachment; filename="{file_name(view, form)}"'}
    return Response(body, media_type=MEDIA_TYPES[form], headers=headers)


def _query(
    tier: str | None,
    model: str | None,
    start_date: str | None,
    end_date: str | None,
    period: Period,
    time_zone: str | None,
    group: Grouping,
) -> SlaQuery:
    return SlaQuery(
        tier=tier,
        model=model,
        start_date=start_date,
        end_date=end_date,
        period=period,
        time_zone=time_zone,
        by=group,
    )


async def _report(services: Services, by: Actor, tenant: str | None, query: SlaQuery) -> SlaView:
    """Raises RowNotFound, InvalidValue, DatabaseUnavailable."""
    tiers = [tier.name for tier in services.config.tiers]

    def read(connection: sa.Connection) -> SlaView:
        tenant_id = visible_tenant(connection, by, tenant)
        found = sla_reports.make_sla_report(connection, msgspec.structs.replace(query, tenant_id=tenant_id), tiers)
        own = None if tenant_id is None else tenants.get_tenant(connection, tenant_id)
        return SlaView.of_report(found, None if own is None else own.slug)

    return await services.database.report(read)
