"""/v1/admin/limits: rate limits of single keys and tenants, and quotas of tenants."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa
from litestar import Controller, delete, get, post
from msgspec import UNSET, Meta, UnsetType

from billing.errors import RowNotFound
from gateway.admin.administration import Administration
from gateway.admin.writes import Actor, visible_tenant
from gateway.config.allowance import LIMIT_MAX
from gateway.limits import overrides
from gateway.limits.overrides import MAXIMA, NAMES, LimitsChange, OwnLimits
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, TenantFilter, after_id
from gateway.services import Services
from gateway.views.accounts import Page, make_page

Count = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
Bytes = Annotated[int, Meta(ge=1, le=MAXIMA["total_file_bytes"])]
Tokens = Annotated[int, Meta(ge=1, le=MAXIMA["enqueued_tokens"])]


class LimitsSetting(msgspec.Struct, forbid_unknown_fields=True):
    """Rate limits of `tenant` (id or slug), or of its key `key_id`. Only the given fields change; null: the configured
    limit. The quotas `files`, `total_file_bytes`, `batches` and `enqueued_tokens` are refused for a key."""

    tenant: str
    key_id: str | None = None
    requests_per_minute: Count | UnsetType | None = UNSET
    tokens_per_minute: Count | UnsetType | None = UNSET
    concurrency: Count | UnsetType | None = UNSET
    files: Count | UnsetType | None = UNSET
    total_file_bytes: Bytes | UnsetType | None = UNSET
    batches: Count | UnsetType | None = UNSET
    enqueued_tokens: Tokens | UnsetType | None = UNSET


class AllowanceView(msgspec.Struct, frozen=True, kw_only=True):
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int


class QuotasView(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas of a tenant: its files and their bytes, its batches that have not ended and their enqueued tokens."""

    files: int
    total_file_bytes: int
    batches: int
    enqueued_tokens: int


class DefaultLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of laneway.toml: of each `key` (`[limits]`) and of each `tenant` (`[tenant_limits]`, `quotas` of
    `[files]` and `[batches]`) without limits of its own."""

    key: AllowanceView
    tenant: AllowanceView
    quotas: QuotasView


class LimitsController(Controller):
    path = "/limits"
    opt = {"area": "limits"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/limits"}, status_code=200)
    async def set_limits(self, services: Services, administration: Administration, data: LimitsSetting) -> OwnLimits:
        """Set the rate limits of a tenant or a key, and the quotas of a tenant. Every gateway applies rate limits
        within a second, and quotas at once."""
        change = LimitsChange(**{name: getattr(data, name) for name in NAMES})
        return await services.database.administer(
            lambda c: administration.limits.set(c, tenant_id=data.tenant, key_id=data.key_id, change=change)
        )

    @get("/", opt={"route": "/v1/admin/limits"})
    async def list_limits(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[OwnLimits]:
        """Tenants and keys with limits of their own, of all tenants or of one."""

        def query(connection: sa.Connection) -> list[OwnLimits]:
            return overrides.list_own_limits(connection, visible_tenant(connection, by, tenant))

        found = await services.database.read(query)
        return make_page(after_id(found, after), limit, lambda own: own, lambda own: own.id)

    @get("/defaults", opt={"route": "/v1/admin/limits/defaults"}, sync_to_thread=False)
    def default_limits(self, services: Services) -> DefaultLimits:
        """The configured limits, which apply where no limit is set."""
        config = services.config
        return DefaultLimits(
            key=AllowanceView(**msgspec.structs.asdict(config.limits)),
            tenant=AllowanceView(**msgspec.structs.asdict(config.tenant_limits)),
            quotas=QuotasView(
                files=config.files.tenant_files_max,
                total_file_bytes=config.files.tenant_bytes_max,
                batches=config.batches.tenant_batches_max,
                enqueued_tokens=config.batches.tenant_enqueued_tokens_max,
            ),
        )

    @get("/{limits_id:str}", opt={"route": "/v1/admin/limits/{limits_id}"})
    async def get_limits(self, services: Services, by: Actor, limits_id: str) -> OwnLimits:
        """The limits of one tenant or key, by their id."""
        found = await services.database.read(lambda c: overrides.get_own_limits(c, limits_id))
        if found is None or not by.sees(found.tenant_id):
            raise RowNotFound(f"there are no limits {limits_id!r}", "limits_id")
        return found

    @delete("/{limits_id:str}", opt={"route": "/v1/admin/limits/{limits_id}"})
    async def remove_limits(self, services: Services, administration: Administration, limits_id: str) -> None:
        """Apply the configured limits again."""
        await services.database.administer(lambda c: administration.limits.remove(c, limits_id))
