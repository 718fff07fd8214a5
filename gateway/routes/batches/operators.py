"""/v1/admin/batches and /v1/admin/files: batches and files of all tenants, or of the actor's own. Operators see no text
of requests and answers; a tenant's own people can download its files.
"""

from __future__ import annotations

import functools
from typing import Literal

import sqlalchemy as sa
from litestar import Controller, delete, get, post
from litestar.types import ASGIApp

from billing.lists import ListPage
from gateway.admin.administration import Administration
from gateway.admin.jobs.batches import batch_seen, file_seen
from gateway.admin.refusals import NotPermitted
from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import NotFound
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Search, TenantFilter, list_page, list_query
from gateway.routes.batches.downloads import Download
from gateway.routes.batches.files import download_headers, open_stored, unreadable
from gateway.services import Services
from gateway.views.accounts import Page
from gateway.views.batches import (
    BatchStatus,
    BatchView,
    FilePurpose,
    FileView,
    batch_views,
    list_batch_rows,
    list_tenant_files,
)

BatchSort = Literal["created_at", "-created_at", "deadline_at", "-deadline_at", "status", "-status", "lines", "-lines"]
FileSort = Literal["created_at", "-created_at", "filename", "-filename", "bytes", "-bytes"]
BATCHES, FILES = "/v1/admin/batches", "/v1/admin/files"


class BatchController(Controller):
    path = "/batches"
    opt = {"area": "batches"}  # noqa: RUF012

    @get("/", opt={"route": BATCHES})
    async def list_batches(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        status: BatchStatus | None = None,
        search: Search = None,
        sort: BatchSort = "-created_at",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[BatchView]:
        """Batches with their progress. `search`: part of the id of a batch or of one of its files."""
        wanted = list_query(sort, search, after, limit)

        def query(connection: sa.Connection) -> ListPage[BatchView]:
            tenant_id = visible_tenant(connection, by, tenant)
            found = list_batch_rows(connection, wanted, tenant_id=tenant_id, status=status)
            return ListPage(batch_views(connection, found.items, by, services.batch_progress), found.next)

        return list_page(await services.database.report(query), lambda view: view)

    @get("/{batch_id:str}", opt={"route": f"{BATCHES}/{{batch_id}}"})
    async def get_batch(self, services: Services, by: Actor, batch_id: str) -> BatchView:
        """One batch, also after its tenant has deleted it."""

        def query(connection: sa.Connection) -> BatchView:
            return batch_views(connection, [batch_seen(connection, batch_id, by)], by, services.batch_progress)[0]

        return await services.database.report(query)

    @post("/{batch_id:str}/cancel", opt={"route": f"{BATCHES}/{{batch_id}}/cancel"}, status_code=200)
    async def cancel_batch(
        self, services: Services, by: Actor, administration: Administration, batch_id: str
    ) -> BatchView:
        """End a batch early. Lines that run are aborted and not billed; the outputs so far remain."""

        def change(connection: sa.Connection) -> BatchView:
            row = administration.batches.cancel(connection, batch_id)
            return batch_views(connection, [row], by, services.batch_progress)[0]

        view = await services.database.administer(change)
        services.batch_worker.notice_batch()
        return view


class FileController(Controller):
    path = "/files"
    opt = {"area": "batches"}  # noqa: RUF012

    @get("/", opt={"route": FILES})
    async def list_files(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        purpose: FilePurpose | None = None,
        search: Search = None,
        sort: FileSort = "-created_at",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[FileView]:
        """Files of batches that are neither deleted nor expired."""
        wanted = list_query(sort, search, after, limit)

        def query(connection: sa.Connection) -> ListPage[FileView]:
            tenant_id = visible_tenant(connection, by, tenant)
            found = list_tenant_files(connection, wanted, tenant_id=tenant_id, purpose=purpose)
            return ListPage([FileView.of(one) for one in found.items], found.next)

        return list_page(await services.database.report(query), lambda view: view)

    @get("/{file_id:str}", opt={"route": f"{FILES}/{{file_id}}"})
    async def get_file(self, services: Services, by: Actor, file_id: str) -> FileView:
        """One file, without its content."""
        return FileView.of(await services.database.read(lambda c: file_seen(c, file_id, by)))

    @delete("/{file_id:str}", opt={"route": f"{FILES}/{{file_id}}"})
    async def delete_file(self, services: Services, administration: Administration, file_id: str) -> None:
        """Delete a file. A batch that uses the file is not affected."""
        await services.database.administer(lambda c: administration.files.delete(c, file_id))

    @get("/{file_id:str}/content", opt={"route": f"{FILES}/{{file_id}}/content"})
    async def get_file_content(self, services: Services, by: Actor, file_id: str) -> ASGIApp:
        """The content of a file, for the tenant's own people only. Raises NotPermitted for an operator."""
        found = await services.database.read(lambda c: file_seen(c, file_id, by))
        if by.tenant_id != found.tenant_id:
            raise NotPermitted("The content of a file is shown to the people and keys of its own tenant only.")
        opened = await services.files.open_file(found.tenant_id, file_id)
        if opened is None:
            raise NotFound(f"there is no file {file_id!r}")
        stored, key = opened
        reader = await open_stored(services, stored, key)
        headers = download_headers(stored)
        return Download(reader.stream_bytes(), [reader], headers, functools.partial(unreadable, stored.id))
