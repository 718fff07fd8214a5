"""/v1/admin/adapters: LoRA adapters, uploaded, named, promoted and removed while everything serves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from litestar import Controller, Request, delete, get, patch, post
from msgspec import Meta

from adapters.files.facts import Facts
from billing.lists import ListPage
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor, tenant_of, visible_tenant
from gateway.catalog import adapters
from gateway.catalog.adapters import Adapter, Registration, Version
from gateway.catalog.base_models import BaseModel
from gateway.errors import InvalidRequest
from gateway.http.form import Fields
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Name, Search, TenantFilter, list_page, list_query
from gateway.services import Services
from gateway.uploads.staged import AdapterBase
from gateway.uploads.uploads import BOOLEANS, ReceivedUpload, UploadView
from gateway.views.accounts import AddedAdapterView, Page, page

AdapterSort = Literal["name", "-name", "base_model", "-base_model", "version", "-version", "created_at", "-created_at"]


class Promotion(msgspec.Struct, forbid_unknown_fields=True):
    """`version`: its number, or the beginning of its content's digest, of 8 characters or more."""

    version: int | Annotated[str, Meta(min_length=8, max_length=64)]


class AdapterChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is given changes. `shared`: tenants (ids or slugs) that may call it beside its owner, or "*" for all."""

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
        """Upload an adapter, as peft saves it, and give it a name; or, under a name that there is, a further version.
        Once answered, this gateway serves it, and every other within a second."""
        bytes_left = await services.database.read(administration.adapters.bytes_left)
        async with services.uploads.receive(request, by, bytes_left) as upload:
            wanted, base = _registration(upload.fields), await _base(services, by, upload)
            wanted = msgspec.structs.replace(wanted, base_model=base.name)
            await services.database.read(lambda c: _check_tenants(c, wanted, by))  # before the work, not after it
            staged = await upload.check_adapter(base)
            made = await services.database.administer(
                lambda c: administration.adapters.register(c, wanted, staged.facts, staged.keep_content)
            )
        return AddedAdapterView.of(made)

    @post("/check", opt={"route": "/v1/admin/adapters/check"}, status_code=200)
    async def check_adapter(self, request: Request[Any, Any, Any], services: Services, by: Actor) -> Facts:
        """Everything that an upload does to check an adapter, and nothing of it stays."""
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
        """Adapters, of all owners or of one. `name`: those that have exactly this name, one of each owner at most."""
        wanted = list_query(sort, search, after, limit)

        def query(connection: sa.Connection) -> ListPage[Adapter]:
            return adapters.found(
                connection, wanted, tenant_id=visible_tenant(connection, by, tenant), name=name or None
            )

        return list_page(await services.database.read(query), lambda adapter: adapter)

    @get("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def get_adapter(self, services: Services, by: Actor, adapter: str) -> Adapter:
        """One, by its id, or by its name where one alone has it; so in all paths below."""
        return await services.database.read(lambda c: _adapter(c, by, adapter))

    @get("/{adapter:str}/versions", opt={"route": "/v1/admin/adapters/{adapter}/versions"})
    async def list_versions(
        self, services: Services, by: Actor, adapter: str, limit: Limit = PAGE_DEFAULT, after: After = None
    ) -> Page[Version]:
        """The contents that it has had, the newest first. The adapter's `version` is the one that is served."""
        found = await services.database.read(lambda c: adapters.versions(c, _adapter(c, by, adapter).id))
        if after is not None:
            numbers = [str(version.number) for version in found]
            if after not in numbers:
                raise InvalidRequest(f"'page' is {after!r}, which is not on this list.", param="page")
            found = found[numbers.index(after) + 1 :]
        return page(found, limit, lambda version: version, lambda version: str(version.number))

    @post("/{adapter:str}/promote", opt={"route": "/v1/admin/adapters/{adapter}/promote"}, status_code=200)
    async def promote_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str, data: Promotion
    ) -> Adapter:
        """Serve this version to every request that comes from now on. Those in flight end on what they began with."""
        return await services.database.administer(
            lambda c: administration.adapters.promote(c, _adapter(c, by, adapter).id, data.version)
        )

    @post("/{adapter:str}/rollback", opt={"route": "/v1/admin/adapters/{adapter}/rollback"}, status_code=200)
    async def roll_back_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str
    ) -> Adapter:
        """Serve again the version that the served one replaced."""
        return await services.database.administer(
            lambda c: administration.adapters.roll_back(c, _adapter(c, by, adapter).id)
        )

    @patch("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def change_adapter(
        self, services: Services, by: Actor, administration: Administration, adapter: str, data: AdapterChange
    ) -> Adapter:
        """Change who may call it, whether it is pinned, and its notes."""
        fields = msgspec.structs.asdict(data)
        return await services.database.administer(
            lambda c: administration.adapters.update(c, _adapter(c, by, adapter).id, **fields)
        )

    @delete("/{adapter:str}", opt={"route": "/v1/admin/adapters/{adapter}"})
    async def remove_adapter(self, services: Services, by: Actor, administration: Administration, adapter: str) -> None:
        """Nobody may call it from now on. Its files go once nothing runs on them."""
        await services.database.administer(lambda c: administration.adapters.remove(c, _adapter(c, by, adapter).id))

    @delete("/{adapter:str}/versions/{version:str}", opt={"route": "/v1/admin/adapters/{adapter}/versions/{version}"})
    async def remove_adapter_version(
        self, services: Services, by: Actor, administration: Administration, adapter: str, version: str
    ) -> None:
        """Forget one that is not served."""
        await services.database.administer(
            lambda c: administration.adapters.remove_version(c, _adapter(c, by, adapter).id, version)
        )


def _bases(services: Services, by: Actor) -> list[BaseModel]:
    """Those that the asker may have adapters of."""
    return [model for model in services.models.active().values() if by.tenant_id is None or model.allows(by.tenant_id)]


def _registration(fields: Fields) -> Registration:
    """Raises InvalidRequest."""
    name = _one(fields, "name")
    if not name:
        raise InvalidRequest("The form lacks the field 'name': what callers write as `model`.", param="name")
    shared = [one.strip() for value in fields["shared"] for one in value.split(",")] if "shared" in fields else None
    return Registration(
        name=name,
        tenant_id=_one(fields, "tenant") or None,
        base_model="",
        shared=None if shared is None else tuple(one for one in shared if one),
        pinned=_boolean(fields, "pinned"),
        notes=_one(fields, "notes"),
        promote=_boolean(fields, "promote"),
    )


async def _base(services: Services, by: Actor, upload: ReceivedUpload) -> AdapterBase:
    return await upload.base(services.config, _bases(services, by), _one(upload.fields, "base"))


def _one(fields: Fields, name: str) -> str | None:
    values = fields.get(name, ())
    if len(values) > 1:
        raise InvalidRequest(f"{name!r} came {len(values)} times.", param=name)
    return values[0] if values else None


def _boolean(fields: Fields, name: str) -> bool | None:
    text = _one(fields, name)
    if text is None:
        return None
    if text.lower() not in BOOLEANS:
        raise InvalidRequest(f"{name!r} is neither true nor false.", param=name)
    return BOOLEANS[text.lower()]


def _adapter(connection: sa.Connection, by: Actor, adapter: str) -> Adapter:
    """Of those that the asker sees. Raises NotFound, InvalidValue."""
    return adapters.adapter_of(connection, adapter, seen_by=by.tenant_id)


def _check_tenants(connection: sa.Connection, wanted: Registration, by: Actor) -> None:
    """Raises NotFound."""
    for tenant in (wanted.tenant_id, *(wanted.shared or ())):
        if tenant not in (None, adapters.EVERYONE):
            tenant_of(connection, str(tenant), by)
