"""/v1/admin/usage, audit, audit_log and engine: usage, the check of the ledger's sums, administrative writes, and the
status of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import sqlalchemy as sa
from litestar import get
from litestar.params import Parameter

from billing.accounts.tags import source_filter
from billing.books import usage
from billing.books.reports import VALUES_MAX
from billing.books.usage import Totals, UsageFilter, UsageRow
from billing.clock import SECOND
from billing.errors import RowNotFound
from billing.lists import ListPage
from billing.proofs.ledger_audit import audit_ledger
from gateway.access import audit_log
from gateway.access.audit_log import AuditLine
from gateway.admin.writes import Actor, visible_tenant
from gateway.engines.engine import EngineUnavailable
from gateway.errors import EngineDown
from gateway.routes.admin.paging import (
    OF_BATCH,
    PAGE_DEFAULT,
    After,
    BatchLines,
    Limit,
    Moment,
    Name,
    Search,
    TenantFilter,
    decode_sequence,
    list_page,
    list_query,
    number_of,
)
from gateway.routes.pages import tag_filter
from gateway.services import Services
from gateway.views.accounts import AuditLineView, AuditView, EngineView, Page, UsageView, make_page
from gateway.views.names import known_names

Tags = Annotated[
    list[str] | None,
    Parameter(max_items=VALUES_MAX, description="NAME=VALUE: one value of each name matches; NAME=: usage without it"),
]


@get("/usage", opt={"route": "/v1/admin/usage", "area": "usage"})
async def usage_totals(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    project_id: Name = None,
    key_id: Name = None,
    model: Name = None,
    adapter: Name = None,
    tier: Name = None,
    tags: Tags = None,
    batch: BatchLines | None = None,
    start_time: Moment = None,
    end_time: Moment = None,
) -> Totals:
    """Sums over settled requests that match every given value, with start_time ≤ finished < end_time. Cost in picos.
    `batch`: `any` selects lines of batches, `none` all other requests."""
    which = _filter(project_id, key_id, model, adapter, tier, tags, batch, start_time, end_time)
    return await services.database.report(lambda c: usage.sum_usage(c, _of_tenant(c, which, by, tenant)))


@get("/usage/requests", opt={"route": "/v1/admin/usage/requests", "area": "usage"})
async def usage_requests(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    project_id: Name = None,
    key_id: Name = None,
    model: Name = None,
    adapter: Name = None,
    tier: Name = None,
    tags: Tags = None,
    batch: BatchLines | None = None,
    start_time: Moment = None,
    end_time: Moment = None,
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[UsageView]:
    """Settled requests, one by one, in the ledger's order. `batch`: as in the sums."""
    begin = decode_sequence(after) or 0
    which = _filter(project_id, key_id, model, adapter, tier, tags, batch, start_time, end_time)

    def query(connection: sa.Connection) -> list[UsageRow]:
        narrowed = _of_tenant(connection, which, by, tenant)
        return usage.list_usage_rows(connection, narrowed, after=begin, limit=limit + 1)

    found = await services.database.report(query)
    return make_page(found, limit, UsageView.of, lambda row: str(row.sequence))


@get("/audit", opt={"route": "/v1/admin/audit", "area": "billing", "everyones": True})
async def audit_findings(services: Services) -> AuditView:
    """Compute every sum of the ledger again and list the differences."""
    return AuditView.of(await services.database.report(audit_ledger))


@get("/audit_log", opt={"route": "/v1/admin/audit_log", "area": "audit"})
async def list_audit_log(
    services: Services,
    by: Actor,
    tenant: TenantFilter = None,
    actor: Name = None,
    action: Name = None,
    object_id: Name = None,
    start_time: Moment = None,
    end_time: Moment = None,
    search: Search = None,
    sort: Literal["at", "-at"] = "-at",
    limit: Limit = PAGE_DEFAULT,
    after: After = None,
) -> Page[AuditLineView]:
    """Administrative writes that match every given value, with start_time ≤ at < end_time."""
    wanted = list_query(sort, search, after, limit)

    def query(connection: sa.Connection) -> tuple[ListPage[AuditLine], dict[str, str]]:
        which = audit_log.AuditFilter(
            tenant_id=visible_tenant(connection, by, tenant),
            actor=actor,
            action=action,
            object_id=object_id,
            start=None if start_time is None else start_time * SECOND,
            end=None if end_time is None else end_time * SECOND,
            names_of=by.tenant_id,
        )
        lines = audit_log.query_audit_lines(connection, which, wanted)
        return lines, _audit_names(connection, lines.items, by)

    lines, names = await services.database.report(query)
    return list_page(lines, lambda line: AuditLineView.of(line, names))


@get("/audit_log/{line_id:str}", opt={"route": "/v1/admin/audit_log/{line_id}", "area": "audit"})
async def get_audit_line(services: Services, by: Actor, line_id: str) -> AuditLineView:
    """One line of the audit log, by its id."""

    def query(connection: sa.Connection) -> AuditLineView:
        line = audit_log.get_audit_line(connection, number_of(line_id), names_of=by.tenant_id)
        if line is None or not by.sees(line.tenant_id):
            raise RowNotFound(f"there is no audit line {line_id!r}", "line_id")
        return AuditLineView.of(line, _audit_names(connection, [line], by))

    return await services.database.read(query)


def _audit_names(connection: sa.Connection, lines: Sequence[AuditLine], by: Actor) -> dict[str, str]:
    """The names of objects and actors that `by` may see."""
    ids = [one for line in lines for one in (line.object_id, line.actor)]
    return known_names(connection, ids, seen_by=by.tenant_id)


@get("/engine", opt={"route": "/v1/admin/engine", "area": "engine"})
async def engine_status(services: Services) -> EngineView:
    """The status of the engine now."""
    try:
        return EngineView.of(await services.engine.status())
    except EngineUnavailable as error:
        raise EngineDown("No engine is connected.") from error


def _filter(
    project_id: str | None,
    key_id: str | None,
    model: str | None,
    adapter: str | None,
    tier: str | None,
    tags: list[str] | None,
    batch: BatchLines | None,
    start_time: int | None,
    end_time: int | None,
) -> UsageFilter:
    return UsageFilter(
        project_id=project_id,
        key_id=key_id,
        model=model,
        adapter=adapter,
        tier=tier,
        tags=(*tag_filter(tags or (), "tags"), *source_filter(OF_BATCH.get(batch or ""))),
        start=None if start_time is None else start_time * SECOND,
        end=None if end_time is None else end_time * SECOND,
    )


def _of_tenant(connection: sa.Connection, which: UsageFilter, by: Actor, tenant: str | None) -> UsageFilter:
    """The filter for one tenant, by id or slug, or for the actor's own. Raises RowNotFound."""
    return msgspec.structs.replace(which, tenant_id=visible_tenant(connection, by, tenant))
