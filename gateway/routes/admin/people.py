"""/v1/admin/tenants, /v1/admin/projects and /v1/admin/keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.params import Parameter
from msgspec import UNSET, Meta, UnsetType

from billing.accounts import tenants
from billing.accounts.tags import TAGS_MAX
from gateway.access import keys
from gateway.access.keys import OVERLAP_S_MAX, Key, Kind
from gateway.access.roles import Role
from gateway.admin.administration import Administration
from gateway.admin.tenants import seen_project
from gateway.admin.writes import Actor, key_of, tenant_of, visible_tenant
from gateway.config.networks import NETWORKS_MAX
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit, Name, Search, TenantFilter, list_page, list_query
from gateway.services import Services
from gateway.views.accounts import NewKeyView, Page, ProjectView, TenantView

TenantSort = Literal[
    "slug", "-slug", "name", "-name", "tier", "-tier", "status", "-status", "created_at", "-created_at"
]
ProjectSort = Literal["name", "-name", "created_at", "-created_at", "tenant_id", "-tenant_id"]
KeySort = Literal[
    "created_at", "-created_at", "name", "-name", "kind", "-kind", "role", "-role", "tier", "-tier",
    "last_used_at", "-last_used_at", "expires_at", "-expires_at", "revoked_at", "-revoked_at",
]  # fmt: skip
Tokens = Annotated[int, Meta(ge=1, le=2**24)]
StoredSeconds = Annotated[int, Meta(ge=tenants.STORED_S_MIN, le=tenants.STORED_S_MAX)]
Networks = Annotated[list[str], Meta(min_length=1, max_length=NETWORKS_MAX)]
Archived = Annotated[bool, Parameter(description="archived objects instead of all others")]
Models = Annotated[list[str], Meta(min_length=1, max_length=keys.MODELS_MAX)]
Tags = Annotated[dict[str, str], Meta(max_length=TAGS_MAX)]
Weight = Annotated[float, Meta(gt=0, le=tenants.SHARE_WEIGHT_MAX)]


class NewTenant(msgspec.Struct, forbid_unknown_fields=True):
    """`slug` names the tenant in /t/<slug>/v1. `tier` is the highest tier of its keys. The currency can never be
    changed. The days and months of its budgets begin at midnight in `time_zone`, an IANA name. Of two waiting tenants
    of one tier, the one with twice the `share_weight` is served twice as much."""

    slug: str
    tier: str
    name: str | None = None
    currency: str = "USD"
    default_max_tokens: Tokens | None = None
    share_weight: Weight = 1.0
    time_zone: str = "UTC"


class TenantChange(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. Keys of a suspended tenant are refused. Another `time_zone` resets the daily and
    monthly budget windows: usage in the windows of the old zone does not count in the new ones. `cheapest`: an alias
    that permits it routes the tenant's requests to its cheapest suitable model, whatever the weights.
    `store_responses_s`: for how long responses of /v1/responses are stored; null stores none, and makes the responses
    unreadable that are stored already. `allowed_ips`: networks from which its keys may be used, as in a key's.
    `on_budget`: handling of batch lines that no budget covers: `wait` until their batch's window ends, or `fail`; null:
    the value of the configuration."""

    name: str | None = None
    tier: str | None = None
    status: Literal["active", "suspended"] | None = None
    default_max_tokens: Tokens | UnsetType | None = UNSET
    share_weight: Weight | None = None
    time_zone: str | None = None
    cheapest: bool | None = None
    store_responses_s: StoredSeconds | UnsetType | None = UNSET
    allowed_ips: Networks | UnsetType | None = UNSET
    on_budget: tenants.OnBudget | UnsetType | None = UNSET


class NewProject(msgspec.Struct, forbid_unknown_fields=True):
    """`tenant`: an id or a slug. `default_max_tokens`: for requests without a limit of output tokens, if their key has
    no default."""

    tenant: str
    name: str
    default_max_tokens: Tokens | None = None


class ProjectChange(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. The default project cannot be renamed."""

    name: str | None = None
    default_max_tokens: Tokens | UnsetType | None = UNSET


class NewKey(msgspec.Struct, forbid_unknown_fields=True):
    """`tenant`: an id or a slug; admin keys have none, except for the role tenant_admin. `project`: an id or a name; by
    default the default project. `tier`: the tenant's or a lower one. `expires_at` in Unix seconds. `role`: of an admin
    key, the role of the key that makes it or a lower one; by default the same role. `models`: the models, adapters and
    aliases that it may call, by default all of its tenant; an alias covers its models. `allowed_ips`: networks (CIDR)
    or addresses from which it may be used, by default all. `tags` mark its usage. `break_glass`: an admin key for
    emergencies, whose use raises an alert."""

    tenant: str | None = None
    project: str | None = None
    name: str = "api"
    kind: Kind = "live"
    tier: str | None = None
    scopes: list[str] | None = None
    expires_at: Annotated[int, Meta(ge=0, le=2**40)] | None = None
    default_max_tokens: Tokens | None = None
    role: Role | None = None
    break_glass: bool | None = None
    models: Models | None = None
    allowed_ips: Networks | None = None
    tags: Tags = {}


class KeyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Only the given fields change. `project`: an id or a name; from then on the key's requests count in its budgets.
    `default_max_tokens` null: the default of the project, the tenant or the model. `models` and `allowed_ips` null: no
    restriction. `tags` replaces all tags, for requests from then on. `break_glass`: of an admin key."""

    project: str | None = None
    default_max_tokens: Tokens | UnsetType | None = UNSET
    break_glass: bool | None = None
    models: Models | UnsetType | None = UNSET
    allowed_ips: Networks | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """`overlap_s`: how long the old key still works. Until it ends, requests of both keys count in the key's own
    budgets and rate limits; then the new key has them alone, with the amounts used so far."""

    overlap_s: Annotated[int, Meta(ge=0, le=OVERLAP_S_MAX)] = 24 * 3600


class TenantController(Controller):
    path = "/tenants"
    opt = {"area": "people"}  # noqa: RUF012  # as the framework has it

    @post("/", opt={"route": "/v1/admin/tenants", "everyones": True})
    async def create_tenant(self, services: Services, administration: Administration, data: NewTenant) -> TenantView:
        """Make a tenant."""
        fields = msgspec.structs.asdict(data)
        return TenantView.of(await services.database.administer(lambda c: administration.tenants.create(c, **fields)))

    @get("/", opt={"route": "/v1/admin/tenants"})
    async def list_tenants(
        self,
        services: Services,
        by: Actor,
        search: Search = None,
        archived: Archived = False,
        status: tenants.Status | None = None,
        sort: TenantSort = "slug",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[TenantView]:
        """All tenants; for an actor with a tenant, only this one."""
        wanted = list_query(sort, search, after, limit)
        found = await services.database.read(
            lambda c: tenants.query_tenants(c, wanted, tenant_id=by.tenant_id, archived=archived, status=status)
        )
        return list_page(found, TenantView.of)

    @get("/{tenant_id:str}", opt={"route": "/v1/admin/tenants/{tenant_id}"})
    async def get_tenant(self, services: Services, by: Actor, tenant_id: str) -> TenantView:
        """One tenant, by id or slug."""
        return TenantView.of(await services.database.read(lambda c: tenant_of(c, tenant_id, by)))

    @patch("/{tenant_id:str}", opt={"route": "/v1/admin/tenants/{tenant_id}"})
    async def change_tenant(
        self, services: Services, administration: Administration, tenant_id: str, data: TenantChange
    ) -> TenantView:
        """Change, suspend or resume a tenant."""
        fields = msgspec.structs.asdict(data)
        return TenantView.of(
            await services.database.administer(lambda c: administration.tenants.update(c, tenant_id, **fields))
        )

    @delete("/{tenant_id:str}", opt={"route": "/v1/admin/tenants/{tenant_id}"})
    async def archive_tenant(self, services: Services, administration: Administration, tenant_id: str) -> None:
        """Archive a tenant: its keys are refused, and lists leave it out. It keeps its usage, invoices and slug.
        Archiving it again changes nothing."""
        await services.database.administer(lambda c: administration.tenants.archive(c, tenant_id))

    @post(
        "/{tenant_id:str}/restore",
        opt={"route": "/v1/admin/tenants/{tenant_id}/restore"},
        status_code=200,
    )
    async def restore_tenant(self, services: Services, administration: Administration, tenant_id: str) -> TenantView:
        """End the archiving of a tenant: it is active, and its keys work again."""
        return TenantView.of(await services.database.administer(lambda c: administration.tenants.restore(c, tenant_id)))


class ProjectController(Controller):
    path = "/projects"
    opt = {"area": "people"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/projects"})
    async def create_project(self, services: Services, administration: Administration, data: NewProject) -> ProjectView:
        """Make a project of a tenant."""
        fields = msgspec.structs.asdict(data)
        tenant = fields.pop("tenant")

        return ProjectView.of(
            await services.database.administer(lambda c: administration.projects.create(c, tenant_id=tenant, **fields))
        )

    @get("/", opt={"route": "/v1/admin/projects"})
    async def list_projects(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        search: Search = None,
        archived: Archived = False,
        sort: ProjectSort = "name",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[ProjectView]:
        """Projects, of all tenants or of one."""
        wanted = list_query(sort, search, after, limit)
        found = await services.database.read(
            lambda c: tenants.query_projects(c, wanted, tenant_id=visible_tenant(c, by, tenant), archived=archived)
        )
        return list_page(found, ProjectView.of)

    @get("/{project_id:str}", opt={"route": "/v1/admin/projects/{project_id}"})
    async def get_project(self, services: Services, by: Actor, project_id: str) -> ProjectView:
        """One project, by id."""
        return ProjectView.of(await services.database.read(lambda c: seen_project(c, project_id, by)))

    @patch("/{project_id:str}", opt={"route": "/v1/admin/projects/{project_id}"})
    async def change_project(
        self, services: Services, administration: Administration, project_id: str, data: ProjectChange
    ) -> ProjectView:
        """Change a project."""
        fields = msgspec.structs.asdict(data)
        return ProjectView.of(
            await services.database.administer(lambda c: administration.projects.update(c, project_id, **fields))
        )

    @delete("/{project_id:str}", opt={"route": "/v1/admin/projects/{project_id}"})
    async def archive_project(self, services: Services, administration: Administration, project_id: str) -> None:
        """Archive a project without usable keys: it takes no key, and lists leave it out. It keeps its usage and name.
        Archiving it again changes nothing."""
        await services.database.administer(lambda c: administration.projects.archive(c, project_id))

    @post("/{project_id:str}/restore", opt={"route": "/v1/admin/projects/{project_id}/restore"}, status_code=200)
    async def restore_project(self, services: Services, administration: Administration, project_id: str) -> ProjectView:
        """End the archiving of a project."""
        return ProjectView.of(
            await services.database.administer(lambda c: administration.projects.restore(c, project_id))
        )


class KeyController(Controller):
    path = "/keys"
    opt = {"area": "keys"}  # noqa: RUF012

    @post("/", opt={"route": "/v1/admin/keys"})
    async def create_key(self, services: Services, administration: Administration, data: NewKey) -> NewKeyView:
        """Make a key. Only this answer contains its secret."""
        fields: dict[str, Any] = msgspec.structs.asdict(data)
        tenant, fields["break_glass"] = fields.pop("tenant"), bool(data.break_glass)
        made = await services.database.administer(lambda c: administration.keys.create(c, tenant_id=tenant, **fields))
        return NewKeyView.of(made)

    @get("/", opt={"route": "/v1/admin/keys"})
    async def list_keys(
        self,
        services: Services,
        by: Actor,
        tenant: TenantFilter = None,
        project: Name = None,
        kind: Kind | None = None,
        role: Role | None = None,
        status: keys.Status | None = None,
        search: Search = None,
        sort: KeySort = "created_at",
        limit: Limit = PAGE_DEFAULT,
        after: After = None,
    ) -> Page[Key]:
        """Keys without their secrets, revoked ones too. Every given value must match. `project` is an id. The status
        `expiring` means an active key that expires within 14 days."""
        wanted = list_query(sort, search, after, limit)
        found = await services.database.read(
            lambda c: keys.query_keys(
                c,
                wanted,
                tenant_id=visible_tenant(c, by, tenant),
                project_id=project,
                kind=kind,
                role=role,
                status=status,
            )
        )
        return list_page(found, lambda key: key)

    @get("/{key_id:str}", opt={"route": "/v1/admin/keys/{key_id}"})
    async def get_key(self, services: Services, by: Actor, key_id: str) -> Key:
        """One key, without its secret."""
        return await services.database.read(lambda c: key_of(c, key_id, by))

    @patch("/{key_id:str}", opt={"route": "/v1/admin/keys/{key_id}"})
    async def change_key(self, services: Services, administration: Administration, key_id: str, data: KeyChange) -> Key:
        """Change a key. Every gateway applies it within a second."""
        fields = msgspec.structs.asdict(data)
        return await services.database.administer(lambda c: administration.keys.update(c, key_id, **fields))

    @post("/{key_id:str}/rotate", opt={"route": "/v1/admin/keys/{key_id}/rotate"})
    async def rotate_key(
        self, services: Services, administration: Administration, key_id: str, data: Rotation
    ) -> NewKeyView:
        """Make a key that replaces this one, which expires after `overlap_s`. Both share the key's own budgets and rate
        limits."""
        made = await services.database.administer(
            lambda c: administration.keys.rotate(c, key_id, overlap_s=data.overlap_s)
        )
        return NewKeyView.of(made)

    @post("/{key_id:str}/revoke", opt={"route": "/v1/admin/keys/{key_id}/revoke"}, status_code=200)
    async def revoke_key(self, services: Services, administration: Administration, key_id: str) -> Key:
        """Revoke a key. Every gateway refuses it within a second."""
        return await services.database.administer(lambda c: administration.keys.revoke(c, key_id))
