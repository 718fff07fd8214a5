"""/v1/admin/exports: files of a month for finance, made in the background and downloaded when they are done."""

from __future__ import annotations

from typing import Literal

import msgspec
import sqlalchemy as sa
from litestar import Controller, delete, get, post
from litestar.response import File

from billing.exports import jobs
from billing.exports.export import ExportSpec
from billing.exports.jobs import ExportJob
from billing.focus import manifest
from gateway.admin.administration import Administration
from gateway.admin.jobs.exports import export_of
from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import Conflict
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Search, TenantFilter, list_page, list_query
from gateway.services import Services
from gateway.upkeep.exports import ExportFileElsewhere
from gateway.views.accounts import ExportView, Page

ExportSort = Literal["created_at", "-created_at", "month", "-month", "kind", "-kind", "state", "-state"]
MEDIA_TYPES = {
    "csv": "text/csv",  # the framework adds the charset
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}


class NewExport(msgspec.Struct, forbid_unknown_fields=True):
    """`month`, for example 2026-01, in each tenant's own time zone. `tenant`: an id or a slug; by default all tenants.
    The kind `events` (CloudEvents) exists as jsonl only."""

    month: str
    kind: Literal["focus", "events"] = "focus"
    format: Literal["csv", "parquet", "jsonl"] = "csv"
    tenant: str | None = None


class ExportController(Controller):
    path = "/exports"
    opt = {"area": "exports"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/exports"})
    async def create_export(
        self, services: Services, by: Actor, administration: Administration, data: NewExport
    ) -> ExportView:
        """Order an export. Exports of a closed month are identical; an export of an open month has the usage so far."""

        def change(connection: sa.Connection) -> ExportJob:
            tenant_id = visible_tenant(connection, by, data.tenant)
            spec = ExportSpec(kind=data.kind, format=data.format, month=data.month, tenant_id=tenant_id)
            return administration.exports.create(connection, spec)

        return ExportView.of(await services.database.administer(change))

    @get("/", opt={"route": "/v1/admin/exports"})
    async def list_exports(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        search: Search = None,
        sort: ExportSort = "-created_at",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[ExportView]:
        """Exports with their progress."""
        wanted = list_query(sort, search, after, limit)
        found = await services.database.read(
            lambda c: jobs.query_exports(c, wanted, tenant_id=visible_tenant(c, by, tenant))
        )
        return list_page(found, ExportView.of)

    @get("/{export_id:str}", opt={"route": "/v1/admin/exports/{export_id}"})
    async def get_export(self, services: Services, by: Actor, export_id: str) -> ExportView:
        """One export."""
        return ExportView.of(await services.database.read(lambda c: export_of(c, export_id, by)))

    @delete("/{export_id:str}", opt={"route": "/v1/admin/exports/{export_id}"})
    async def end_export(self, services: Services, administration: Administration, export_id: str) -> None:
        """Cancel an export, or delete the file of a completed one."""
        job = await services.database.administer(lambda c: administration.exports.end(c, export_id))
        if job.state == "removed":  # on another host the next export deletes the files
            await services.exporter.delete_files(job.id)

    @get("/{export_id:str}/file", opt={"route": "/v1/admin/exports/{export_id}/file"}, status_code=200)
    async def download(self, services: Services, by: Actor, export_id: str) -> File:
        """The file of a completed export."""
        return await self._file(services, by, export_id, "")

    @get("/{export_id:str}/manifest", opt={"route": "/v1/admin/exports/{export_id}/manifest"}, status_code=200)
    async def download_manifest(self, services: Services, by: Actor, export_id: str) -> File:
        """The manifest of a completed export: hash, rows, control totals, and the part of the ledger that it covers."""
        return await self._file(services, by, export_id, manifest.SUFFIX)

    async def _file(self, services: Services, by: Actor, export_id: str, suffix: str) -> File:
        job = await services.database.read(lambda c: export_of(c, export_id, by))
        if job.state != "done" or job.file is None:
            raise Conflict(f"The export is {job.state}, so it has no file.")
        try:
            path = services.exporter.path(job, suffix)
        except ExportFileElsewhere as error:
            raise Conflict(str(error)) from None
        media_type = MEDIA_TYPES[job.format] if not suffix else "application/json"
        return File(path, filename=path.name, media_type=media_type)
