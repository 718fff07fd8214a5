"""Tenants and their projects. Every write bumps the revision in its own transaction. This module knows no keys."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts.prices import REQUEST_TOKENS_MAX
from billing.clock import database_now, is_time_zone
from billing.errors import AlreadyExists, ArgumentChecks, InvalidValue, RowNotFound
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.revision import Change
from billing.texts import check_text

LIST_MAX = 1000
SHARE_WEIGHT_MAX = 1000.0
PROJECTS_MAX = 1000  # of one tenant
STORED_S_MIN, STORED_S_MAX = 60, 10 * 366 * 24 * 3600  # of `store_responses_s`
DEFAULT_PROJECT = "default"

Status = Literal["active", "suspended"]
OnBudget = Literal["wait", "fail"]

_SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CURRENCY = re.compile(r"[A-Z]{3}")
_tenants = tables.tenants
_projects = tables.projects


_SORTED_TENANTS = ListColumns(
    sorts={name: _tenants.c[name] for name in ("slug", "name", "tier", "status", "created_at")},
    unique=_tenants.c.id,
    searched=(_tenants.c.id, _tenants.c.slug, _tenants.c.name),
)
_SORTED_PROJECTS = ListColumns(
    sorts={name: _projects.c[name] for name in ("name", "created_at", "tenant_id")},
    unique=_projects.c.id,
    searched=(_projects.c.id, _projects.c.name, _projects.c.tenant_id),
)


class Tenant(msgspec.Struct, frozen=True):
    """`slug`: the name in /t/<slug>. `tier`: the highest tier of the tenant's keys. `time_zone`: of its budget windows
    and periods. `share_weight`: while two tenants wait in a tier, the tenant with twice the weight is served twice as
    much. `cheapest`: aliases that allow it choose the cheapest model that can serve a request. `store_responses_s`: for
    how long its responses are stored; None: they are not. `allowed_ips`: the networks from which its keys may be used;
    None: every address. `on_budget`: handling of batch lines that no budget covers; None: the value of laneway.toml. An
    archived tenant is suspended, and lists leave it out."""

    id: str
    slug: str
    name: str
    tier: str
    currency: str
    status: Status
    default_max_tokens: int | None
    share_weight: float
    created_at: int
    time_zone: str = "UTC"
    cheapest: bool = False
    store_responses_s: int | None = None
    allowed_ips: list[str] | None = None
    on_budget: OnBudget | None = None
    archived_at: int | None = None


class Project(msgspec.Struct, frozen=True):
    """A group of a tenant's keys. `default_max_tokens` applies to requests that state no limit and whose key has no
    default. An archived project has no usable key."""

    id: str
    tenant_id: str
    name: str
    created_at: int
    default_max_tokens: int | None = None
    archived_at: int | None = None


def create_tenant(
    connection: sa.Connection,
    *,
    slug: str,
    name: str,
    tier: str,
    currency: str = "USD",
    default_max_tokens: int | None = None,
    share_weight: float = 1.0,
    time_zone: str = "UTC",
) -> Tenant:
    """Create a tenant with its default project. The currency never changes. Raises InvalidValue, AlreadyExists."""
    check_new(connection, slug, name, tier, currency, default_max_tokens, share_weight, time_zone)
    now = database_now(connection)
    tenant = Tenant(
        new_id("ten"), slug, name, tier, currency, "active", default_max_tokens, share_weight, now, time_zone
    )
    try:
        connection.execute(sa.insert(_tenants).values(msgspec.structs.asdict(tenant)))
    except sa.exc.IntegrityError as error:  # another process created it meanwhile
        raise AlreadyExists(f"there is a tenant {slug!r} already", "slug") from error
    _add_project(connection, tenant.id, DEFAULT_PROJECT, None)
    revision.bump(connection, Change("tenants", tenant.id))
    return tenant


def check_new(
    connection: sa.Connection,
    slug: str,
    name: str,
    tier: str,
    currency: str,
    default_max_tokens: int | None,
    share_weight: float,
    time_zone: str,
) -> None:
    """Check every argument of `create_tenant`. Raises InvalidValue, AlreadyExists, with all arguments at fault."""
    faults = ArgumentChecks()
    faults.note(_check_slug, connection, slug)
    faults.note(_check, name, tier, default_max_tokens, share_weight)
    faults.note(_check_currency, currency)
    faults.note(_check_zone, time_zone)
    faults.raise_all()


def get_tenant(connection: sa.Connection, tenant_id: str) -> Tenant | None:
    row = connection.execute(sa.select(_tenants).where(_tenants.c.id == tenant_id)).one_or_none()
    return None if row is None else Tenant(*row)


def by_slug(connection: sa.Connection, slug: str) -> Tenant | None:
    row = connection.execute(sa.select(_tenants).where(_tenants.c.slug == slug)).one_or_none()
    return None if row is None else Tenant(*row)


def list_tenants(connection: sa.Connection, *, after: str = "", limit: int = 100) -> list[Tenant]:
    """A page in the order of slugs, beginning after slug `after`."""
    query = sa.select(_tenants).where(_tenants.c.slug > after).order_by(_tenants.c.slug).limit(min(limit, LIST_MAX))
    return [Tenant(*row) for row in connection.execute(query)]


def query_tenants(
    connection: sa.Connection,
    list_query: ListQuery,
    *,
    tenant_id: str | None = None,
    archived: bool | None = None,
    status: Status | None = None,
) -> ListPage[Tenant]:
    """A page of all tenants, or of the tenant `tenant_id` only. `archived`: only archived tenants, or only the others;
    None: both. `status`: only tenants with it. Raises InvalidValue."""
    query = sa.select(_tenants)
    if archived is not None:
        query = query.where(_tenants.c.archived_at.is_not(None) == archived)
    if tenant_id is not None:
        query = query.where(_tenants.c.id == tenant_id)
    if status is not None:
        query = query.where(_tenants.c.status == status)
    return select_page(
        connection, query, _SORTED_TENANTS, list_query, lambda row: Tenant(*row), lambda tenant: tenant.id
    )


def update_tenant(
    connection: sa.Connection,
    tenant_id: str,
    *,
    name: str | None = None,
    tier: str | None = None,
    default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    share_weight: float | None = None,
    time_zone: str | None = None,
    cheapest: bool | None = None,
    store_responses_s: int | msgspec.UnsetType | None = msgspec.UNSET,
    allowed_ips: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
    on_budget: OnBudget | msgspec.UnsetType | None = msgspec.UNSET,
) -> Tenant:
    """Change the given fields; `allowed_ips` are checked networks. Raises InvalidValue, RowNotFound. After a change of
    the time zone, budgets by day and month count in windows of the new zone, which do not include the use of the old
    zone's windows."""
    limit = None if default_max_tokens is msgspec.UNSET else default_max_tokens
    weight = 1.0 if share_weight is None else share_weight
    _check("-" if name is None else name, "-" if tier is None else tier, limit, weight)
    values: dict[str, object] = {}
    if name is not None:
        values["name"] = name
    if tier is not None:
        values["tier"] = tier
    if default_max_tokens is not msgspec.UNSET:
        values["default_max_tokens"] = default_max_tokens
    if share_weight is not None:
        values["share_weight"] = share_weight
    if time_zone is not None:
        _check_zone(time_zone)
        values["time_zone"] = time_zone
    if cheapest is not None:
        values["cheapest"] = cheapest
    if store_responses_s is not msgspec.UNSET:
        if store_responses_s is not None and not STORED_S_MIN <= store_responses_s <= STORED_S_MAX:
            limits = f"it must be {STORED_S_MIN} to {STORED_S_MAX}"
            raise InvalidValue(f"is {store_responses_s} seconds; {limits}", "store_responses_s")
        values["store_responses_s"] = store_responses_s
    if allowed_ips is not msgspec.UNSET:
        values["allowed_ips"] = allowed_ips
    if on_budget is not msgspec.UNSET:
        values["on_budget"] = on_budget
    return _change(connection, tenant_id, values)


def suspend(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "suspended"})


def resume(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "active"})


def archive(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "suspended", "archived_at": database_now(connection)})


def restore(connection: sa.Connection, tenant_id: str) -> Tenant:
    return _change(connection, tenant_id, {"status": "active", "archived_at": None})


def create_project(
    connection: sa.Connection, *, tenant_id: str, name: str, default_max_tokens: int | None = None
) -> Project:
    """Raises InvalidValue, AlreadyExists."""
    _check(name, "-", default_max_tokens, 1.0)
    if project_of(connection, tenant_id, name) is not None:
        raise AlreadyExists(f"the tenant has a project {name!r} already", "name")
    if len(projects(connection, tenant_id)) >= PROJECTS_MAX:
        raise InvalidValue(f"the tenant has {PROJECTS_MAX} projects already", "tenant")
    project = _add_project(connection, tenant_id, name, default_max_tokens)
    revision.bump(connection, Change("projects", tenant_id))
    return project


def _add_project(connection: sa.Connection, tenant_id: str, name: str, default_max_tokens: int | None) -> Project:
    project = Project(new_id("prj"), tenant_id, name, database_now(connection), default_max_tokens)
    connection.execute(sa.insert(_projects).values(msgspec.structs.asdict(project)))
    return project


def update_project(
    connection: sa.Connection,
    project_id: str,
    *,
    name: str | None = None,
    default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
) -> Project:
    """Change the given fields. Raises InvalidValue, also if the default project would be renamed, AlreadyExists and
    RowNotFound."""
    before = get_project(connection, project_id)
    if before is None:
        raise RowNotFound(f"there is no project {project_id!r}")
    limit = None if default_max_tokens is msgspec.UNSET else default_max_tokens
    _check("-" if name is None else name, "-", limit, 1.0)
    values: dict[str, object] = {}
    if name is not None and name != before.name:
        if before.name == DEFAULT_PROJECT:
            raise InvalidValue("the default project cannot be renamed", "name")
        if project_of(connection, before.tenant_id, name) is not None:
            raise AlreadyExists(f"the tenant has a project {name!r} already", "name")
        values["name"] = name
    if default_max_tokens is not msgspec.UNSET:
        values["default_max_tokens"] = default_max_tokens
    if values:
        connection.execute(sa.update(_projects).where(_projects.c.id == project_id).values(values))
    revision.bump(connection, Change("projects", before.tenant_id))
    return msgspec.structs.replace(before, **values)


def set_archived(connection: sa.Connection, project: Project, archived: bool) -> Project:
    """Archive a project, or restore it. Raises InvalidValue for the default project."""
    if project.name == DEFAULT_PROJECT:
        raise InvalidValue("the default project cannot be archived", "project")
    moment = database_now(connection) if archived else None
    connection.execute(sa.update(_projects).where(_projects.c.id == project.id).values(archived_at=moment))
    revision.bump(connection, Change("projects", project.tenant_id))
    return msgspec.structs.replace(project, archived_at=moment)


def get_project(connection: sa.Connection, project_id: str) -> Project | None:
    row = connection.execute(sa.select(_projects).where(_projects.c.id == project_id)).one_or_none()
    return None if row is None else Project(*row)


def project_of(connection: sa.Connection, tenant_id: str, project: str) -> Project | None:
    """A tenant's project, by id or by name."""
    named = sa.or_(_projects.c.id == project, _projects.c.name == project)
    query = sa.select(_projects).where(_projects.c.tenant_id == tenant_id, named)
    row = connection.execute(query.order_by(_projects.c.id != project)).first()
    return None if row is None else Project(*row)


def projects(connection: sa.Connection, tenant_id: str) -> list[Project]:
    """A tenant's projects, in the order of their names."""
    query = sa.select(_projects).where(_projects.c.tenant_id == tenant_id).order_by(_projects.c.name)
    return [Project(*row) for row in connection.execute(query)]


def query_projects(
    connection: sa.Connection, list_query: ListQuery, *, tenant_id: str | None = None, archived: bool | None = None
) -> ListPage[Project]:
    """A page of all tenants' projects, or of one tenant's. `archived`: only archived projects, or only the others;
    None: both. Raises InvalidValue."""
    query = sa.select(_projects)
    if archived is not None:
        query = query.where(_projects.c.archived_at.is_not(None) == archived)
    if tenant_id is not None:
        query = query.where(_projects.c.tenant_id == tenant_id)
    return select_page(
        connection, query, _SORTED_PROJECTS, list_query, lambda row: Project(*row), lambda project: project.id
    )


def _check_slug(connection: sa.Connection, slug: str) -> None:
    """Check the form of a slug, and that no tenant has it. Raises InvalidValue, AlreadyExists."""
    if not _SLUG.fullmatch(slug):
        raise InvalidValue("a slug is 1 to 63 of a-z, 0-9 and inner hyphens", "slug")
    if by_slug(connection, slug) is not None:
        raise AlreadyExists(f"there is a tenant {slug!r} already", "slug")


def _check_currency(currency: str) -> None:
    if not _CURRENCY.fullmatch(currency):
        raise InvalidValue("a currency is three capital letters (ISO 4217)", "currency")


def _check_zone(time_zone: str) -> None:
    if not is_time_zone(time_zone):
        raise InvalidValue("a time zone is an IANA name, for example Europe/Berlin", "time_zone")


def _check(name: str, tier: str, default_max_tokens: int | None, share_weight: float) -> None:
    faults = ArgumentChecks()
    faults.note(check_text, name, "name", "a name is", 200)
    faults.note(check_text, tier, "tier", "a tier is", 32)
    faults.note(_check_tokens, default_max_tokens)
    faults.note(_check_weight, share_weight)
    faults.raise_all()


def _check_tokens(default_max_tokens: int | None) -> None:
    if default_max_tokens is not None and not 1 <= default_max_tokens <= REQUEST_TOKENS_MAX:
        raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "default_max_tokens")


def _check_weight(share_weight: float) -> None:
    if not 0 < share_weight <= SHARE_WEIGHT_MAX:  # written so that NaN is refused too
        raise InvalidValue(f"is {share_weight:g}; it must be over 0 and at most {SHARE_WEIGHT_MAX:g}", "share_weight")


def _change(connection: sa.Connection, tenant_id: str, values: dict[str, object]) -> Tenant:
    if values:
        connection.execute(sa.update(_tenants).where(_tenants.c.id == tenant_id).values(values))
    tenant = get_tenant(connection, tenant_id)
    if tenant is None:
        raise RowNotFound(f"there is no tenant {tenant_id!r}")
    revision.bump(connection, Change("tenants", tenant_id))
    return tenant
