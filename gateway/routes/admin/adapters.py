"""/v1/admin/adapters: LoRA adapters are uploaded, promoted, changed and removed while requests run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from litestar import Controller, Request, delete, get, patch, post
from msgspec import Meta

from adapters.files.facts import Facts
from billing.lists import ListPage
from gateway.admin.adapters import version_number
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor, tenant_of, visible_tenant
from gateway.catalog import adapters
from gateway.catalog.adapters import Adapter, Registration, Version
from gateway.catalog.base_models import BaseModel
from gateway.errors import InvalidRequest
from gateway.http.form import Fields
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Name, Search, TenantFilter, list_page, list_query
from gateway.routes.automation.idempotency import begin_idempotent_upload
from gateway.services import Services
from gateway.uploads.staged import AdapterBase
from gateway.uploads.uploads import BOOLEANS, ReceivedUpload, UploadView
from gateway.views.accounts import AddedAdapterView, Page, make_page

AdapterSort = Literal["name", "-name", "base_model", "-base_model", "version", "-version", "created_at", "-created_at"]


class Promotion(msgspec.Struct, forbid_unknown_fields=True):
    """`version`: a version's number, or at least 8 characters of its digest."""

    version: int | Annotated[str, Meta(min_length=8, max_length=64)]


class AdapterChange(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. `shared`: tenants (ids or slugs) that may call the adapter beside its owning
    tenant, or "*" for all."""

    shared: Annotated[list[str], Meta(max_length=adapters.SHARES_MAX)] | None = None
    pinned: bool | None = None
    notes: str | None = None


class AdapterController(Controller):
    path = "/adapters"
    opt = {"area": "adapters"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/adapters"})
    async def upload_adapter(
        self, request: Request[Any, Any, Any], services: Services, by: Actor, administration: Administration
    ) -> AddedAdapterView:
        """Upload an adapter as peft saves it: a new one, or under an existing name a new version. This gateway serves
        it when it answers, every other gateway within a second."""
        bytes_left = await services.database.read(administration.adapters.bytes_left)
        async with services.uploads.receive(request, by, bytes_left) as upload:
            wanted, base = _registration(upload.fields), await _base(services, by, upload)
            wanted = msgspec.structs.replace(wanted, base_model=base.name)
            await services.database.read(lambda c: _check_tenants(c, wanted, by))  # before the slow check
            staged = await upload.check_adapter(base)
            idempotent = await begin_idempotent_upload(services, request, by, upload.fields, staged.facts.digest)
            administration = Administration(services.config, by, idempotent)
            made = await services.database.administer(
                lambda c: administration.adapters.register(c, wanted, staged.facts, staged.keep_content)
            )
        return AddedAdapterView.of(made)

    @post("/check", opt={"route": "/v1/admin/adapters/check"}, status_code=200)
    async def check_adapter(self, request: Request[Any, Any, Any], services: Services, by: Actor) -> Facts:
        """Check an upload as POST /v1/admin/adapters does, without storing it."""
        async with services.uploads.receive(request, by) as upload:
            return (await upload.check_adapter(await _base(services, by, upload))).facts

    @get("/uploads", opt={"route": "/v1/admin/adapters/uploads", "everyones": True})
    async def list_uploads(self, services: Services) -> list[UploadView]:
        """Uploads that this gateway process receives or checks now, oldest first, each with its tenant and key."""
        return services.uploads.list_running()

    @get("/", opt={"route": "/v1/admin/adapters"})
    async def list_adapters(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        name: Name = None,
        search: Search = None,
        sort: AdapterSort = "name",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[Adapter]:
        """Adapters of all owning tenants or of one. `name`: adapters of exactly this name, of which each owner has at
        most one."""
        wanted = list_query(sort, search, after, limit)

        def query(connection: sa.Connection) -> ListPage[Adapter]:
            return adapters.query_adapters(
                connection, wanted, tenant_id=visible_tenant(connection, by, tenant), name=name or None
            )

        return list_page(await services.database.read(query), lambda adapter: adapter)

    @get("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def get_adapter(self, services: Services, by: Actor, adapter: str) -> Adapter:
        """One adapter by its id, or by its name if only one adapter has it; this applies to all paths below."""
        return await services.database.read(lambda c: _adapter(c, by, adapter))

    @get("/{adapter:str}/versions", opt={"route": "/v1/admin/adapters/{adapter}/versions"})
    async def list_versions(
        self, services: Services, by: Actor, adapter: str, limit: Limit = PAGE_DEFAULT, after: After = None
    ) -> Page[Version]:
        """The versions of an adapter, newest first. The adapter's `version` is the served one."""
        found = await services.database.read(lambda c: adapters.versions(c, _adapter(c, by, adapter).id))
        if after is not None:
            numbers = [str(version.number) for version in found]
            if after not in numbers:
                raise InvalidRequest(f"'page' is {after!r}, which is not on this list.", param="page")
            found = found[numbers.index(after) + 1 :]
        return make_page(found, limit, lambda version: version, lambda version: str(version.number))

    @get("/{adapter:str}/versions/{version:str}", opt={"route": "/v1/admin/adapters/{adapter}/versions/{version}"})
    async def get_adapter_version(self, services: Services, by: Actor, adapter: str, version: str) -> Version:
        """One version that is not removed, by its number or at least 8 characters of its digest."""

        def query(connection: sa.Connection) -> Version:
            found = _adapter(connection, by, adapter)
            return adapters.version_of(connection, found.id, version_number(connection, found, version))

        return await services.database.read(query)

    @post("/{adapter:str}/promote", opt={"route": "/v1/admin/adapters/{adapter}/promote"}, status_code=200)
    async def promote_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str, data: Promotion
    ) -> Adapter:
        """Serve this version to new requests. Requests in flight finish with the version that they began with."""
        return await services.database.administer(
            lambda c: administration.adapters.promote(c, _adapter(c, by, adapter).id, data.version)
        )

    @post("/{adapter:str}/rollback", opt={"route": "/v1/admin/adapters/{adapter}/rollback"}, status_code=200)
    async def roll_back_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str
    ) -> Adapter:
        """Serve the version again that was served before the present one."""
        return await services.database.administer(
            lambda c: administration.adapters.roll_back(c, _adapter(c, by, adapter).id)
        )

    @patch("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def change_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str, data: AdapterChange
    ) -> Adapter:
        """Change which tenants may call an adapter, whether it is pinned, and its notes."""
        fields = msgspec.structs.asdict(data)
        return await services.database.administer(
            lambda c: administration.adapters.update(c, _adapter(c, by, adapter).id, **fields)
        )

    @delete("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def remove_adapter(self, services: Services, by: Actor, administration: Administration, adapter: str) -> None:
        """Stop serving an adapter to new requests. Its files are deleted once no request uses them."""
        await services.database.administer(lambda c: administration.adapters.remove(c, _adapter(c, by, adapter).id))

    @delete("/{adapter:str}/versions/{version:str}", opt={"route": "/v1/admin/adapters/{adapter}/versions/{version}"})
    async def remove_adapter_version(
        self, services: Services, by: Actor, administration: Administration, adapter: str, version: str
    ) -> None:
        """Remove a version that is not served."""
        await services.database.administer(
            lambda c: administration.adapters.remove_version(c, _adapter(c, by, adapter).id, version)
        )


def _bases(services: Services, by: Actor) -> list[BaseModel]:
    """The base models that the actor may have adapters of."""
    return [model for model in services.models.active().values() if by.tenant_id is None or model.allows(by.tenant_id)]


def _registration(fields: Fields) -> Registration:
    """Raises InvalidRequest."""
    name = _single(fields, "name")
    if not name:
        raise InvalidRequest("The form lacks the field 'name': what callers write as `model`.", param="name")
    shared = [name.strip() for value in fields["shared"] for name in value.split(",")] if "shared" in fields else None
    return Registration(
        name=name,
        tenant_id=_single(fields, "tenant") or None,
        base_model="",
        shared=None if shared is None else tuple(name for name in shared if name),
        pinned=_boolean(fields, "pinned"),
        notes=_single(fields, "notes"),
        promote=_boolean(fields, "promote"),
    )


async def _base(services: Services, by: Actor, upload: ReceivedUpload) -> AdapterBase:
    return await upload.base(services.config, _bases(services, by), _single(upload.fields, "base"))


def _single(fields: Fields, name: str) -> str | None:
    values = fields.get(name, ())
    if len(values) > 1:
        raise InvalidRequest(f"The form has the field {name!r} {len(values)} times.", param=name)
    return values[0] if values else None


def _boolean(fields: Fields, name: str) -> bool | None:
    text = _single(fields, name)
    if text is None:
        return None
    if text.lower() not in BOOLEANS:
        raise InvalidRequest(f"{name!r} is neither true nor false.", param=name)
    return BOOLEANS[text.lower()]


def _adapter(connection: sa.Connection, by: Actor, adapter: str) -> Adapter:
    """An adapter that the actor sees, by id or name. Raises RowNotFound, InvalidValue."""
    return adapters.adapter_of(connection, adapter, seen_by=by.tenant_id)


def _check_tenants(connection: sa.Connection, wanted: Registration, by: Actor) -> None:
    """Check that the tenants of an upload exist. Raises RowNotFound."""
    for tenant in (wanted.tenant_id, *(wanted.shared or ())):
        if tenant not in (None, adapters.EVERYONE):
            tenant_of(connection, str(tenant), by)
